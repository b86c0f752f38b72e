// SPDX-License-Identifier: Apache-2.0
// What a pruned plan moves, against the mask and the layout alone: each needed key once, no key for nothing.
#include "schedule_audit.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace usp::test {
namespace {

using Pairs = std::map<std::pair<i64, i64>, int>;  ///< (token, kv head) -> how often

class Need {
 public:
  explicit Need(const ScheduleCase& c)
      : case_(c), plan_(c.plan), all_(c), mask_(c.plan, c.documents), ring_(c.plan.mesh.ring()) {
    for (int r = 0; r < ring_; ++r) {
      queries_.push_back(row_tokens(all_.geometry.layout(schedule::Side::q), r));
      for (i64 k : row_tokens(all_.geometry.layout(schedule::Side::k), r)) key_row_[k] = r;
    }
  }

  /// Forward, nothing fed through: the rank receives what it needs and does not hold, and what its row must
  /// serve, each pair once.
  void receives_exactly_the_need(int rank) const {
    const int r = plan_.mesh.ring_of(rank), u = plan_.mesh.ulysses_of(rank);
    const std::vector<i64> own = row_tokens(all_.geometry.layout(schedule::Side::k), r,
                                            all_.geometry.layout(schedule::Side::k).home(r, u));
    Pairs expected;
    for (const auto& [k, j] : key_row_) {
      if (contains(plan_.replicated_k, k)) continue;
      const bool wanted =
          j == r ? seen_by_anyone(k) && std::find(own.begin(), own.end(), k) == own.end() : sees(r, k);
      if (!wanted) continue;
      for (i64 h : kv_heads(u)) ++expected[{k, h}];
    }
    for (Tensor x : {Tensor::k, Tensor::v})
      ASSERT_EQ(received(Pass::forward, rank, x, [](const schedule::TransferOp&) { return true; }), expected)
          << "rank " << rank << ", " << describe(case_);
  }

  /// A block that is fed through carries only keys that this row or a later one can see, each pair once.
  void forwards_nothing_in_vain(int rank, Pass pass) const {
    const int r = plan_.mesh.ring_of(rank);
    const Pairs got = received(pass, rank, Tensor::k, [](const schedule::TransferOp& m) {
      return m.name == schedule::TransferName::kv_exchange;
    });
    for (const auto& [pair, count] : got) {
      ASSERT_EQ(count, 1) << describe(case_);
      const int j = key_row_.at(pair.first), d = offset(j, r);
      ASSERT_TRUE(seen_between(j, d, last_fed(d), pair.first))
          << "key " << pair.first << " rank " << rank << ", " << describe(case_);
    }
    for (const auto& [k, j] : key_row_) {
      if (j == r || !sees(r, k) || contains(plan_.replicated_k, k)) continue;
      for (i64 h : kv_heads(plan_.mesh.ulysses_of(rank)))
        ASSERT_EQ(got.count({k, h}), 1U) << "key " << k << " rank " << rank << ", " << describe(case_);
    }
  }

  /// Backward: the partial dK, dV of every remote consumer leaves once, and no sum of nothing travels.
  void partials_depart_once(int rank) const {
    const int r = plan_.mesh.ring_of(rank);
    for (Tensor x : {Tensor::dk, Tensor::dv}) {
      const Pairs left = departed(rank, x);
      for (const auto& [pair, count] : left) {
        ASSERT_EQ(count, 1) << describe(case_);
        const int j = key_row_.at(pair.first), d = offset(j, r);
        ASSERT_TRUE(seen_between(j, first_rider(d), d, pair.first))
            << "an empty sum of key " << pair.first << " leaves rank " << rank << ", " << describe(case_);
      }
      for (const auto& [k, j] : key_row_) {
        if (j == r || !sees(r, k) || contains(plan_.replicated_k, k)) continue;
        for (i64 h : kv_heads(plan_.mesh.ulysses_of(rank)))
          ASSERT_EQ(left.count({k, h}), 1U) << "key " << k << " rank " << rank << ", " << describe(case_);
      }
    }
  }

 private:
  [[nodiscard]] bool sees(int r, i64 k) const {
    return mask_.any_sees(queries_[static_cast<std::size_t>(r)], k);
  }
  [[nodiscard]] bool seen_by_anyone(i64 k) const {
    for (int r = 0; r < ring_; ++r)
      if (sees(r, k)) return true;
    return false;
  }
  [[nodiscard]] bool seen_between(int j, int first, int last, i64 k) const {
    for (int d = first; d <= last; ++d)
      if (sees(plan_.mesh.row_at(j, plan_.mesh.shift_of(d)), k)) return true;
    return false;
  }
  [[nodiscard]] int offset(int from, int to) const {
    for (int d = 0; d < ring_; ++d)
      if (plan_.mesh.row_at(from, plan_.mesh.shift_of(d)) == to) return d;
    return -1;
  }
  [[nodiscard]] bool one_hop() const {
    return plan_.method == Method::ring_direct || plan_.method == Method::all_gather_kv;
  }
  /// The last offset that a block which stands at offset d still reaches from there.
  [[nodiscard]] int last_fed(int d) const {
    const int inner = plan_.mesh.ring_inner;
    if (one_hop()) return d;
    if (plan_.method == segmented_ring && d > 0) return std::min(d / segment * segment + segment, ring_) - 1;
    if (plan_.method == Method::double_ring && d % inner != 0) return d / inner * inner + inner - 1;
    return ring_ - 1;
  }
  /// The first offset whose partial may ride in the sum that stands at offset d.
  [[nodiscard]] int first_rider(int d) const {
    if (one_hop() || plan_.dkv_return == DkvReturn::direct) return d;
    const int inner = plan_.mesh.ring_inner;
    // Laps of one rank are no laps: the outer hops alone are a ring.
    const int lap = plan_.method == segmented_ring                     ? d / segment * segment
                    : plan_.method == Method::double_ring && inner > 1 ? d / inner * inner
                                                                       : 0;
    return lap == 0 && plan_.dkv_return != DkvReturn::cycle ? 1 : lap;
  }
  /// KV heads that the query heads of a ulysses rank use: query heads are cut to within one, larger first.
  [[nodiscard]] std::set<i64> kv_heads(int u) const {
    const i64 heads = plan_.shape.query_heads, ranks = plan_.mesh.ulysses,
              group = heads / plan_.shape.kv_heads;
    std::set<i64> used;
    i64 next = 0;
    for (i64 x = 0; x <= u; ++x) {
      const i64 count = heads / ranks + (x < heads % ranks ? 1 : 0);
      if (x == u)
        for (i64 h = next; h < next + count; ++h) used.insert(h / group);
      next += count;
    }
    return used;
  }

  template <class Wanted>
  [[nodiscard]] Pairs received(Pass pass, int rank, Tensor tensor, const Wanted& wanted) const {
    Pairs got;
    const schedule::RankSchedule& s = all_.of(pass)[static_cast<std::size_t>(rank)];
    for (const schedule::Transfer& t : s.transfers) {
      if (t.send || t.peer == rank || !wanted(all_.move(pass, t))) continue;
      for (const Cell& cell : cells_of(all_.geometry, s, t))
        if (cell.tensor == tensor) ++got[{cell.token, cell.head}];
    }
    return got;
  }
  [[nodiscard]] Pairs departed(int rank, Tensor tensor) const {
    Pairs left;
    const schedule::RankSchedule& s = all_.of(Pass::backward)[static_cast<std::size_t>(rank)];
    for (const schedule::Transfer& t : s.transfers) {
      if (!t.send || t.peer == rank ||
          all_.move(Pass::backward, t).name == schedule::TransferName::dqkv_all_to_all)
        continue;
      for (const Cell& cell : cells_of(all_.geometry, s, t))
        if (cell.tensor == tensor) ++left[{cell.token, cell.head}];
    }
    return left;
  }

  const ScheduleCase& case_;
  const AttentionPlan& plan_;
  const Expanded all_;
  const Mask mask_;
  const int ring_;
  std::vector<std::vector<i64>> queries_;
  std::map<i64, int> key_row_;
};

void check(ScheduleCase c) {
  c.plan.prune = true;
  c.plan.head_chunks = 1;
  const Need need(c);
  const bool one_hop = c.plan.method == Method::ring_direct || c.plan.method == Method::all_gather_kv;
  for (int p = 0; p < c.plan.mesh.size(); ++p) {
    if (one_hop) need.receives_exactly_the_need(p);
    for (Pass pass : both_passes) need.forwards_nothing_in_vain(p, pass);
    need.partials_depart_once(p);
  }
}

TEST(ScheduleNeed, RandomCases) {
  CaseGenerator g(8);
  for (int i = 0; i < 800 && !testing::Test::HasFailure(); ++i) check(g.draw());
}

TEST(ScheduleNeed, EvenCases) {
  CaseGenerator g(9);
  for (int ranks : {4, 8, 12, 16})
    for (int i = 0; i < 12 && !testing::Test::HasFailure(); ++i) check(g.draw_even(ranks, 1));
}

}  // namespace
}  // namespace usp::test
