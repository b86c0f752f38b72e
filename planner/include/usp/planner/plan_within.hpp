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

/// plan_step within the modes, layouts, heads and divisibility of a framework, priced as it executes them:
/// NCCL, repeated KV heads, gathers before attention. Notes say what that costs against a free choice. Throws
/// Infeasible with the reasons of every mode.
[[nodiscard]] FrameworkPlan plan_within(const PlanRequest& request, const FrameworkTraits& framework);

}  // namespace usp
