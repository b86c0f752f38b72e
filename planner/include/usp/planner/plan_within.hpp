// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/framework.hpp"

namespace usp {

/// The best plan of a step that a framework can do.
struct FrameworkPlan {
  PlanRequest request;  ///< as searched: constraints and execution are those of the mode
  PlanResult result;
  const ExchangeMode* mode = nullptr;  ///< empty where the framework takes any plan
};

/// Between the name of a framework and the reasons of its modes, where it can do no plan.
inline constexpr const char* no_plan_text = " can do no plan of this job: ";

/// plan_step within the modes, layouts, heads and divisibility of a framework, priced as it executes them:
/// NCCL, repeated KV heads, gathers before attention. Throws Infeasible with the reasons of every mode.
[[nodiscard]] FrameworkPlan plan_in_modes(const PlanRequest& request, const FrameworkTraits& framework);

/// The same, with notes of what that costs.
[[nodiscard]] FrameworkPlan plan_within(const PlanRequest& request, const FrameworkTraits& framework);

}  // namespace usp
