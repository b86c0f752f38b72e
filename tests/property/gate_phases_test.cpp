// SPDX-License-Identifier: Apache-2.0
// AttentionPlan::gate_phases: the blocks of a gated forward pass in several calls.
#include "usp/schedule/gate_phases.hpp"

#include "schedule_audit.hpp"

#include "usp/planner/pricing.hpp"

#include <gtest/gtest.h>

#include <tuple>

namespace usp::test {
namespace {

/// Blocks that the calls of a pass attend.
std::vector<int> sizes(int ring, int phases) {
  std::vector<int> list;
  for (int phase = 0, begin = 0; phase < phases; ++phase) {
    const int end = schedule::blocks_through_phase(ring, phases, phase);
    list.push_back(end - begin);
    begin = end;
  }
  return list;
}

TEST(GatePhases, GrowByTheSameFactor) {
  using Sizes = std::vector<int>;
  EXPECT_EQ(sizes(8, 1), (Sizes{8}));
  EXPECT_EQ(sizes(8, 2), (Sizes{1, 7}));
  EXPECT_EQ(sizes(8, 3), (Sizes{1, 2, 5}));
  EXPECT_EQ(sizes(8, 4), (Sizes{1, 1, 2, 4}));
  EXPECT_EQ(sizes(16, 3), (Sizes{1, 3, 12}));
  EXPECT_EQ(sizes(64, 4), (Sizes{1, 3, 12, 48}));
  EXPECT_EQ(sizes(4, 4), (Sizes{1, 1, 1, 1}));
  EXPECT_EQ(sizes(2, 2), (Sizes{1, 1}));
  EXPECT_EQ(schedule::blocks_through_phase(max_degree, 4, 2), 1024) << "32767^2 exceeds 1023^3";
}

/// Every call attends a block, the first the own one alone, and all attend all.
TEST(GatePhases, CoverEveryRing) {
  for (int ring = 1; ring <= 300; ++ring)
    for (int phases = 1; phases <= std::min(ring, schedule::max_gate_phases); ++phases) {
      int before = 0;
      for (int phase = 0; phase < phases; ++phase) {
        const int end = schedule::blocks_through_phase(ring, phases, phase);
        ASSERT_GT(end, before) << ring << " " << phases;
        ASSERT_TRUE(phase > 0 || phases == 1 || end == 1);
        before = end;
      }
      ASSERT_EQ(before, ring) << phases;
    }
}

/// What of a pass phases leave as it is: transfers, buffers and steps, but for the calls that these join.
auto steps_of(const schedule::RankSchedule& s) {
  std::vector<std::tuple<std::int32_t, i64, i64, std::int32_t, std::int32_t, bool>> list;
  for (const schedule::Step& step : s.steps)
    list.emplace_back(step.work, step.key_rows.begin, step.key_rows.end, step.slices.count, step.gates.count,
                      step.overwrite);
  return list;
}

void expect_cut(const ScheduleCase& one_call, int phases) {
  ScheduleCase cut = one_call;
  cut.plan.gate_phases = phases;
  const Expanded whole(one_call), parts(cut);
  const int ring = cut.plan.mesh.ring();
  for (const Pass pass : both_passes)
    for (std::size_t rank = 0; rank < whole.of(pass).size(); ++rank) {
      const schedule::RankSchedule &a = whole.of(pass)[rank], &b = parts.of(pass)[rank];
      ASSERT_EQ(steps_of(a), steps_of(b)) << describe(cut);
      ASSERT_EQ(a.gates, b.gates) << describe(cut);
      ASSERT_EQ(a.arrivals, b.arrivals) << describe(cut);
      ASSERT_EQ(a.transfers.size(), b.transfers.size()) << describe(cut);
      for (std::size_t i = 0; i < a.transfers.size(); ++i)
        ASSERT_EQ(std::tuple(a.transfers[i].bytes, a.transfers[i].start, a.transfers[i].due),
                  std::tuple(b.transfers[i].bytes, b.transfers[i].start, b.transfers[i].due));
      const auto& work = parts.compact.of(pass).work;
      for (std::size_t i = 0; i < b.steps.size(); ++i) {
        const auto& w = work[static_cast<std::size_t>(b.steps[i].work)];
        bool begins = false;  // or a block before it, which the rank does not see, does
        if (pass == Pass::forward && i > 0 && w.list > 0) {
          const auto& last = work[static_cast<std::size_t>(b.steps[i - 1].work)];
          begins = last.list != w.list;
          ASSERT_EQ(w.offsets.begin < schedule::blocks_through_phase(ring, phases, w.list - 1), true);
          ASSERT_EQ(
              w.list == 1 || w.offsets.begin >= schedule::blocks_through_phase(ring, phases, w.list - 2),
              true);
        }
        ASSERT_EQ(b.steps[i].joined, a.steps[i].joined && !begins) << describe(cut) << " step " << i;
      }
    }
  const Ledger sent = ledger(parts.geometry, parts.compact.forward),
               before = ledger(whole.geometry, whole.compact.forward);
  ASSERT_EQ(sent.sent, before.sent) << describe(cut);
  ASSERT_EQ(sent.received, before.received) << describe(cut);
}

TEST(GatePhases, CutCallsAndNothingElse) {
  CaseGenerator g(41);
  int cases = 0;
  while (cases < 120 && !HasFailure()) {
    ScheduleCase c = g.draw();
    if (!c.plan.gated) continue;
    ++cases;
    c.plan.gate_phases = 1;
    for (int phases = 2; phases <= std::min(c.plan.mesh.ring(), schedule::max_gate_phases); ++phases)
      expect_cut(c, phases);
  }
}

}  // namespace
}  // namespace usp::test
