// SPDX-License-Identifier: Apache-2.0
// The schedule of every generator, executed literally in fp64, equals dense attention: o, lse and all
// gradients.
#include "schedule_trial.hpp"

#include <gtest/gtest.h>

#include <map>

namespace usp::test {
namespace {

void check(const ScheduleCase& c, CaseGenerator& g) {
  Trial trial(c, g.engine()());
  const Errors e = trial.run();
  ASSERT_LT(e.o, 1e-10) << "o, " << describe(c);
  ASSERT_LT(e.lse, 1e-10) << "lse, " << describe(c);
  ASSERT_LT(e.dq, 1e-10) << "dq, " << describe(c);
  ASSERT_LT(e.dk, 1e-10) << "dk, " << describe(c);
  ASSERT_LT(e.dv, 1e-10) << "dv, " << describe(c);
  ASSERT_LT(e.d_sink, 1e-10) << "dsink, " << describe(c);
}

TEST(ScheduleNumerics, RandomCasesEqualDenseAttention) {
  CaseGenerator g(20261127);
  for (int i = 0; i < 1500; ++i) {
    const ScheduleCase c = g.draw();
    ASSERT_NO_THROW(check(c, g)) << describe(c);
    if (HasFatalFailure()) return;
  }
}

TEST(ScheduleNumerics, EveryMeshOfUpToTwelveRanks) {
  CaseGenerator g(7);
  for (int ranks = 1; ranks <= 12; ++ranks)
    for (int i = 0; i < 12; ++i) {
      const ScheduleCase c = g.draw(ranks);
      ASSERT_NO_THROW(check(c, g)) << describe(c);
      if (HasFatalFailure()) return;
    }
}

/// Partial dK and dV of blocks begin with the steps that add to them first, or with zeros where one has none.
TEST(ScheduleNumerics, StepsWriteTheFirstPartialOfABlock) {
  CaseGenerator g(11);
  i64 written = 0, zeroed = 0;
  for (int i = 0; i < 300; ++i) {
    const ScheduleCase c = g.draw();
    const Expanded all(c);
    for (const schedule::RankSchedule& s : all.of(Pass::backward)) {
      std::map<schedule::BufferId, i64> begun;  // rows
      for (const schedule::Step& step : s.steps)
        if (step.overwrite_dkv) begun[step[Tensor::dk]] += step.dk_rows.size();
      for (std::size_t b = 0; b < s.buffers.size(); ++b) {
        const schedule::Buffer& buffer = s.buffers[b];
        if (buffer.name.tensor != Tensor::dk || buffer.rows == 0 || buffer.heads.empty()) continue;
        if (buffer.name.place < BufferSlot::acc0 || buffer.name.place > BufferSlot::acc_outer1) continue;
        const bool by_step = begun[static_cast<schedule::BufferId>(b)] == buffer.rows;
        EXPECT_EQ(by_step, buffer.fill == schedule::Fill::nan) << describe(c);
        ++(by_step ? written : zeroed);
      }
    }
  }
  EXPECT_GT(written, 100);
  EXPECT_GT(zeroed, 10);
}

}  // namespace
}  // namespace usp::test
