// SPDX-License-Identifier: Apache-2.0
// Choices that a request fixes: what they cost, and where no layout has them.
#include "step_case.hpp"

#include "usp/planner/plan_attention.hpp"
#include "usp/planner/plan_print.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace usp {
namespace {

/// Gates are never chosen: what they gain or cost is said both ways, and where no plan has them.
TEST(FixedChoices, GatedStepsSaySo) {
  Step step("llama-3.1-8b", 2);
  step.request.workload.seq = 131072;
  EXPECT_FALSE(plan_step(step.request).best().choice.gated);
  step.request.fixed.gated = true;
  const PlanResult result = plan_step(step.request);
  const PlanCandidate& best = result.best();
  EXPECT_TRUE(best.choice.gated);
  EXPECT_NE(describe(best.choice).find(", gated"), std::string::npos);
  EXPECT_NE(plan_text(step.request, result, true).find(", gated"), std::string::npos);
  ASSERT_FALSE(best.attention.empty());
  for (const LayerAttention& layer : best.attention) EXPECT_TRUE(layer.plan.gated);
  for (const PlanCandidate& c : result.candidates) EXPECT_GT(c.choice.mesh.ring(), 1);
  EXPECT_TRUE(std::any_of(result.rejected.begin(), result.rejected.end(), [](const Rejection& r) {
    return r.ring == 1 &&
           r.reason == "gated attention is for rings of more than one rank: nothing arrives on ring 1";
  }));
  const auto& costs = result.verdict.flag_costs;
  const auto of_gates =
      std::find_if(costs.begin(), costs.end(), [](const FlagCost& c) { return c.flag == "--gated"; });
  ASSERT_NE(of_gates, costs.end());
  step.request.fixed.gated = false;
  const PlanResult without = plan_step(step.request);
  EXPECT_EQ(of_gates->without, describe(without.best().choice));
  EXPECT_NEAR(of_gates->slowdown, best.seconds_per_token / without.best().seconds_per_token - 1, 1e-9);
  Choice ungated = best.choice;
  ungated.gated = false;
  const std::string note =
      gates_note(best.seconds_per_token, price_choice(step.request, ungated).seconds_per_token);
  EXPECT_NE(std::find(result.notes.begin(), result.notes.end(), note), result.notes.end()) << note;
  PlanResult gains = result;
  gains.verdict.flag_costs = {{"--gated", -0.125, "another"}};
  EXPECT_NE(plan_text(step.request, gains, true).find("your --gated gains 12.5%: without it another"),
            std::string::npos);
}

TEST(FixedChoices, ChoicesThatNoRingHasAreRefusedWithTheirReason) {
  Step step("llama-3.1-8b", 1);
  step.request.fixed.ulysses = 8;
  step.request.fixed.gated = true;
  const auto problem = [&] {
    try {
      (void)plan_step(step.request);
    } catch (const Infeasible& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(problem().find("gated attention is for rings of more than one rank"), std::string::npos);
  EXPECT_NE(problem().find("no --gated"), std::string::npos);
  step.request.fixed.gated = false;
  step.request.fixed.method = Method::double_ring;
  EXPECT_NE(problem().find("double_ring runs laps inside laps"), std::string::npos);
  EXPECT_NE(problem().find("another --method"), std::string::npos);
}

}  // namespace
}  // namespace usp
