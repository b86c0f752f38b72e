// SPDX-License-Identifier: Apache-2.0
// Workspace packing, and expansion as a pure function of plan, batch and rank.
#include "schedule_audit.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace usp::test {
namespace {

i64 aligned(i64 bytes) {
  return (bytes + 255) / 256 * 256;
}

/// The buffers that a schedule fills, moves or computes on.
std::set<schedule::BufferId> touched_buffers(const schedule::RankSchedule& s) {
  std::set<schedule::BufferId> ids;
  for (const schedule::Tick& tick : s.ticks) {
    for_each(s.transfers, tick.posts, [&](const schedule::Transfer& t, std::int32_t) {
      if (t.stage >= 0) ids.insert(t.stage);
      for_each(s.regions, t.regions,
               [&](const schedule::BufferRegion& region, std::int32_t) { ids.insert(region.buffer); });
    });
    for_each(s.steps, tick.steps, [&](const schedule::Step& step, std::int32_t) {
      for (const schedule::BufferId id : step.buffers)
        if (id >= 0) ids.insert(id);
    });
  }
  for (std::size_t i = 0; i < s.buffers.size(); ++i)
    if (s.buffers[i].fill != schedule::Fill::nan) ids.insert(static_cast<schedule::BufferId>(i));
  return ids;
}

/// The rule of packing, buffer against buffer: greatest first, into the first gap among those that live at
/// the same time.
std::vector<i64> first_fit(const schedule::RankSchedule& s, i64 batch,
                           const std::set<schedule::BufferId>& touched) {
  const auto size = [&](std::size_t i) { return aligned(schedule::bytes_of(s.buffers[i], batch)); };
  std::vector<std::size_t> order;
  for (const schedule::BufferId id : touched)
    if (id >= 0 && s.buffers[static_cast<std::size_t>(id)].internal(static_cast<int>(s.ticks.size())))
      order.push_back(static_cast<std::size_t>(id));
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return size(a) > size(b); });
  std::vector<i64> offsets(s.buffers.size(), -1);
  for (std::size_t n = 0; n < order.size(); ++n) {
    const schedule::Buffer& a = s.buffers[order[n]];
    std::vector<Range> taken;
    for (std::size_t m = 0; m < n; ++m)
      if (const schedule::Buffer& b = s.buffers[order[m]]; a.first <= b.last && b.first <= a.last)
        taken.push_back({offsets[order[m]], offsets[order[m]] + size(order[m])});
    std::sort(taken.begin(), taken.end(), [](const Range& x, const Range& y) { return x.begin < y.begin; });
    i64 at = 0;
    for (const Range& range : taken) {
      if (range.begin - at >= size(order[n])) break;
      at = std::max(at, range.end);
    }
    offsets[order[n]] = at;
  }
  return offsets;
}

/// Returns packed bytes over the most bytes alive in any tick.
double check_workspace(const ScheduleCase& c, const schedule::RankSchedule& s) {
  const i64 batch = c.plan.shape.batch;
  const int ticks = static_cast<int>(s.ticks.size());
  const schedule::Workspace w = schedule::pack_workspace(s, batch);
  EXPECT_EQ(w.offset.size(), s.buffers.size());
  const std::set<schedule::BufferId> touched = touched_buffers(s);
  EXPECT_EQ(w.offset, first_fit(s, batch, touched)) << describe(c);
  i64 last = 0;
  std::vector<i64> alive(static_cast<std::size_t>(ticks), 0);
  for (std::size_t i = 0; i < s.buffers.size(); ++i) {
    const schedule::Buffer& a = s.buffers[i];
    if (!a.internal(ticks) || touched.count(static_cast<schedule::BufferId>(i)) == 0) {
      EXPECT_EQ(w.offset[i], -1) << describe(c);
      continue;
    }
    const i64 end = w.offset[i] + schedule::bytes_of(a, batch);
    EXPECT_GE(w.offset[i], 0) << describe(c);
    EXPECT_EQ(w.offset[i] % 256, 0);
    last = std::max(last, end);
    for (int t = a.first; t <= a.last; ++t)
      alive.at(static_cast<std::size_t>(t)) += aligned(schedule::bytes_of(a, batch));
    for (std::size_t j = 0; j < i; ++j) {
      const schedule::Buffer& b = s.buffers[j];
      if (w.offset[j] < 0 || a.first > b.last || b.first > a.last) continue;
      EXPECT_FALSE(w.offset[i] < w.offset[j] + schedule::bytes_of(b, batch) && w.offset[j] < end)
          << describe(c);
    }
  }
  const i64 most = alive.empty() ? 0 : *std::max_element(alive.begin(), alive.end());
  EXPECT_EQ(w.bytes, last) << describe(c);
  EXPECT_GE(aligned(w.bytes), most) << describe(c);
  return most == 0 ? 1 : static_cast<double>(w.bytes) / static_cast<double>(most);
}

TEST(ScheduleWorkspace, BuffersThatLiveTogetherNeverOverlap) {
  CaseGenerator g(12);
  double worst = 1, sum = 0;
  int count = 0;
  const auto check = [&](ScheduleCase c) {
    c.plan.shape.head_dim_qk = c.plan.shape.head_dim_v = 64;  // large against the alignment
    const Expanded all(c);
    for (Pass pass : both_passes)
      for (const schedule::RankSchedule& s : all.of(pass)) {
        const double ratio = check_workspace(c, s);
        worst = std::max(worst, ratio);
        sum += ratio;
        ++count;
      }
  };
  for (int i = 0; i < 500 && !HasFailure(); ++i) check(g.draw());
  for (int ranks : {4, 8, 16})
    for (int i = 0; i < 15 && !HasFailure(); ++i) check(g.draw_even(ranks, 2));
  std::cout << "packed over alive: worst " << worst << ", mean " << sum / count << "\n";
  EXPECT_LE(worst, 1.5);
  EXPECT_LE(sum / count, 1.02);
}

/// Every number of a schedule, in order.
class Fingerprint {
 public:
  explicit Fingerprint(const schedule::RankSchedule& s) {
    add(s.rank, s.pass);
    for (const schedule::Buffer& b : s.buffers) {
      add(b.name.tensor, b.name.place, b.type, b.fill, b.rows, b.width, b.first, b.last);
      range(b.heads), list(b.pieces);
    }
    for (const schedule::Transfer& t : s.transfers) {
      add(t.peer, t.send, t.write_mode, t.wire, t.move, t.start, t.due, t.bytes, t.stage);
      list(t.regions);
    }
    for (const schedule::Step& step : s.steps) this->step(step);
    for (const schedule::Tick& t : s.ticks) list(t.posts), list(t.steps), list(t.arrivals);
    for (std::int32_t i : s.arrivals) add(i);
    for (std::int32_t i : s.gates) add(i);
    for (const schedule::BufferRegion& b : s.regions) add(b.buffer), range(b.rows), range(b.heads);
    for (const schedule::Piece& p : s.pieces) add(p.ring_row, p.row), range(p.slots);
    for (const schedule::Slice& x : s.slices)
      add(x.q_row, x.q_pos, x.q_step, x.q_count, x.k_row, x.k_pos, x.k_step, x.k_count, x.dk_row, x.diff_min,
          x.diff_max);
  }
  friend bool operator==(const Fingerprint& a, const Fingerprint& b) { return a.numbers_ == b.numbers_; }

 private:
  template <class... T>
  void add(T... value) {
    (numbers_.push_back(static_cast<i64>(value)), ...);
  }
  void range(Range r) { add(r.begin, r.end); }
  void list(schedule::ListRef l) { add(l.begin, l.count); }
  void step(const schedule::Step& x) {
    for (const char letter : x.operation->word) add(letter);
    for (const schedule::BufferId id : x.buffers) add(id);
    add(x.work, x.overwrite, x.overwrite_dkv, x.joined);
    range(x.query_heads), range(x.kv_heads), range(x.key_rows), range(x.dk_rows);
    list(x.slices), list(x.gates);
  }
  std::vector<i64> numbers_;
};

/// One shared geometry in rank order, one read in another order, and one per rank give the same bytes.
TEST(ScheduleDeterminism, ExpansionDependsOnPlanBatchAndRankOnly) {
  CaseGenerator g(13);
  for (int i = 0; i < 300; ++i) {
    const ScheduleCase c = g.draw();
    const Expanded all(c), again(c);
    std::vector<int> order(static_cast<std::size_t>(c.plan.mesh.size()));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), g.engine());
    const schedule::TokenMap shared(c.plan, c.documents);
    for (int p : order)
      for (Pass pass : both_passes) {
        const schedule::TokenMap own(c.plan, c.documents);
        schedule::CompactSchedule compact;
        schedule::generate(c.plan, own.heads().shared_kv(), compact);
        const Fingerprint expected(all.of(pass)[static_cast<std::size_t>(p)]);
        ASSERT_EQ(Fingerprint(again.of(pass)[static_cast<std::size_t>(p)]), expected) << describe(c);
        ASSERT_EQ(Fingerprint(schedule::expand(shared, compact, p, pass)), expected) << describe(c);
        ASSERT_EQ(Fingerprint(schedule::expand(own, compact, p, pass)), expected) << describe(c);
      }
  }
}

}  // namespace
}  // namespace usp::test
