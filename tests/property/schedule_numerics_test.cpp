// SPDX-License-Identifier: Apache-2.0
// The schedule of every generator, executed literally in fp64, equals dense attention: o, lse and all
// gradients.
#include "schedule_trial.hpp"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace usp::test
