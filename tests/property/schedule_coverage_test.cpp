// SPDX-License-Identifier: Apache-2.0
// Over all ranks and steps the slices cover every admissible (query head, query, key) exactly once.
#include "schedule_audit.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace usp::test {
namespace {

class Coverage {
 public:
  Coverage(const ScheduleCase& c, const schedule::TokenMap& geometry)
      : case_(c),
        geometry_(geometry),
        mask_(c.plan, c.documents),
        count_(static_cast<std::size_t>(c.plan.shape.query_heads * c.plan.shape.q_tokens *
                                        c.plan.shape.kv_tokens),
               0) {}

  void add(const schedule::RankSchedule& s) {
    for (const schedule::Step& step : s.steps) {
      if (step.is(schedule::operations::attend)) {
        same_tokens(s, step[Tensor::q], step[Tensor::o]);
        same_tokens(s, step[Tensor::q], step[Tensor::lse]);
        same_tokens(s, step[Tensor::k], step[Tensor::v]);
        check(s, step, step[Tensor::k], step.key_rows);
        check_heads(s, {step[Tensor::q], step[Tensor::o], step[Tensor::lse]}, step.query_heads);
        check_heads(s, {step[Tensor::k], step[Tensor::v]}, step.kv_heads);
      } else if (step.is(schedule::operations::attend_grad)) {
        const schedule::BufferId weights =
            step[Tensor::delta] >= 0 ? step[Tensor::delta] : step[Tensor::o];  // cuDNN takes delta from o
        for (schedule::BufferId id : {step[Tensor::d_o], step[Tensor::lse], weights, step[Tensor::dq]})
          same_tokens(s, step[Tensor::q], id);
        same_tokens(s, step[Tensor::k], step[Tensor::v]);
        same_tokens(s, step[Tensor::dk], step[Tensor::dv]);
        check(s, step, step[Tensor::dk], step.dk_rows);
        check_heads(s, {step[Tensor::q], step[Tensor::d_o], step[Tensor::lse], weights, step[Tensor::dq]},
                    step.query_heads);
        check_heads(s, {step[Tensor::k], step[Tensor::v], step[Tensor::dk], step[Tensor::dv]}, step.kv_heads);
      }
    }
  }

  void finish() const {
    const AttentionShape& shape = case_.plan.shape;
    for (i64 h = 0; h < shape.query_heads; ++h)
      for (i64 q = 0; q < shape.q_tokens; ++q)
        for (i64 k = 0; k < shape.kv_tokens; ++k)
          ASSERT_EQ(count_[at(h, q, k)], mask_.sees(q, k) ? 1 : 0)
              << "head " << h << " query " << q << " key " << k << ", " << describe(case_);
  }

 private:
  [[nodiscard]] std::size_t at(i64 h, i64 q, i64 k) const {
    return static_cast<std::size_t>((h * case_.plan.shape.q_tokens + q) * case_.plan.shape.kv_tokens + k);
  }
  void same_tokens(const schedule::RankSchedule& s, schedule::BufferId a, schedule::BufferId b) const {
    ASSERT_EQ(buffer_tokens(geometry_, s, buffer_of(s, a)), buffer_tokens(geometry_, s, buffer_of(s, b)))
        << describe(case_);
  }
  void check_heads(const schedule::RankSchedule& s, const std::vector<schedule::BufferId>& ids,
                   Range heads) const {
    for (schedule::BufferId id : ids) {
      ASSERT_LE(buffer_of(s, id).heads.begin, heads.begin) << describe(case_);
      ASSERT_GE(buffer_of(s, id).heads.end, heads.end) << describe(case_);
    }
  }

  [[nodiscard]] std::vector<i64> tokens_of(const schedule::RankSchedule& s, schedule::BufferId id,
                                           Range rows) const {
    const std::vector<i64> all = buffer_tokens(geometry_, s, buffer_of(s, id));
    return {all.begin() + rows.begin, all.begin() + rows.end};
  }
  /// @param sum_rows of the buffer of key results, from which those of slices count
  void check(const schedule::RankSchedule& s, const schedule::Step& step, schedule::BufferId sums_id,
             Range sum_rows) {
    const std::vector<i64> queries = buffer_tokens(geometry_, s, buffer_of(s, step[Tensor::q])),
                           keys = tokens_of(s, step[Tensor::k], step.key_rows),
                           sums = tokens_of(s, sums_id, sum_rows);
    const i64 group = case_.plan.shape.query_heads / case_.plan.shape.kv_heads;
    ASSERT_EQ(step.kv_heads.begin, step.query_heads.begin / group);
    ASSERT_EQ(step.kv_heads.end, (step.query_heads.end - 1) / group + 1);
    for_each(s.slices, step.slices, [&](const schedule::Slice& x, std::int32_t) {
      ASSERT_GE(std::min({x.q_row, x.k_row, x.dk_row}), 0) << describe(case_);
      ASSERT_LE(x.q_row + x.q_count, static_cast<i64>(queries.size())) << describe(case_);
      ASSERT_LE(x.k_row + x.k_count, static_cast<i64>(keys.size())) << describe(case_);
      if (sums_id != step[Tensor::k]) {
        for (i64 j = 0; j < x.k_count; ++j)
          ASSERT_EQ(sums.at(static_cast<std::size_t>(x.dk_row + j)),
                    keys.at(static_cast<std::size_t>(x.k_row + j)))
              << describe(case_);
      }
      count(x, step.query_heads, queries, keys);
    });
  }

  void count(const schedule::Slice& x, Range heads, const std::vector<i64>& queries,
             const std::vector<i64>& keys) {
    i64 pairs = 0;
    std::vector<char> row_used(static_cast<std::size_t>(x.q_count), 0),
        column_used(static_cast<std::size_t>(x.k_count), 0);
    for (i64 i = 0; i < x.q_count; ++i)
      for (i64 j = 0; j < x.k_count; ++j) {
        const i64 diff = x.q_pos + i * x.q_step - x.k_pos - j * x.k_step;
        if (diff < x.diff_min || diff > x.diff_max) continue;
        ++pairs;
        row_used[static_cast<std::size_t>(i)] = column_used[static_cast<std::size_t>(j)] = 1;
        for (i64 h = heads.begin; h < heads.end; ++h)
          ++count_[at(h, queries[static_cast<std::size_t>(x.q_row + i)],
                      keys[static_cast<std::size_t>(x.k_row + j)])];
      }
    ASSERT_EQ(std::accumulate(row_used.begin(), row_used.end(), i64{0}), x.q_count) << describe(case_);
    ASSERT_EQ(std::accumulate(column_used.begin(), column_used.end(), i64{0}), x.k_count) << describe(case_);
    ASSERT_EQ(schedule::area(x), pairs) << describe(case_);
  }

  const ScheduleCase& case_;
  const schedule::TokenMap& geometry_;
  const Mask mask_;
  std::vector<int> count_;
};

void check(const ScheduleCase& c) {
  const Expanded all(c);
  for (Pass pass : both_passes) {
    Coverage coverage(c, all.geometry);
    for (const schedule::RankSchedule& s : all.of(pass)) coverage.add(s);
    coverage.finish();
  }
}

TEST(ScheduleCoverage, RandomCases) {
  CaseGenerator g(2);
  for (int i = 0; i < 500 && !testing::Test::HasFailure(); ++i) check(g.draw());
}

TEST(ScheduleCoverage, EvenCases) {
  CaseGenerator g(3);
  for (int ranks : {4, 6, 8, 12, 16})
    for (int i = 0; i < 12 && !testing::Test::HasFailure(); ++i) check(g.draw_even(ranks, 1));
}

/// area() against counting, for any rectangle, step and band.
TEST(ScheduleCoverage, AreaAndTrimOfRandomSlices) {
  CaseGenerator g(4);
  for (int i = 0; i < 20000; ++i) {
    schedule::Slice s;
    s.q_count = g.between(1, 9), s.k_count = g.between(1, 9);
    s.q_pos = g.between(0, 30), s.k_pos = g.between(0, 30);
    s.q_step = s.k_step = g.between(1, 4);
    if (s.q_count == 1) s.q_step = 1;
    if (g.chance(0.7)) s.diff_min = g.between(-20, 20);
    if (g.chance(0.7)) s.diff_max = g.between(-20, 20);
    i64 pairs = 0;
    for (i64 a = 0; a < s.q_count; ++a)
      for (i64 b = 0; b < s.k_count; ++b) {
        const i64 diff = s.q_pos + a * s.q_step - s.k_pos - b * s.k_step;
        if (diff >= s.diff_min && diff <= s.diff_max) ++pairs;
      }
    ASSERT_EQ(schedule::area(s), pairs);
    schedule::Slice trimmed = s;
    ASSERT_EQ(schedule::trim(trimmed), pairs > 0);
    if (pairs > 0) {
      ASSERT_EQ(schedule::area(trimmed), pairs);
    }
  }
}

}  // namespace
}  // namespace usp::test
