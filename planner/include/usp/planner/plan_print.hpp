// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/plan.hpp"
#include "usp/planner/plan_attention.hpp"

#include <string>

namespace usp {

/// A plan for people: what to run, why, what it costs, how sure that is, what to measure.
/// @param brief the job, the plan and how sure it is, without what explains them
[[nodiscard]] std::string plan_text(const PlanRequest& request, const PlanResult& result, bool brief = false);
/// One JSON object (schema: configs/schema/plan_result.v2.schema.json).
[[nodiscard]] std::string plan_result_json(const PlanRequest& request, const PlanResult& result);

/// The same for one attention call (schema: configs/schema/attention_plan_result.v2.schema.json).
[[nodiscard]] std::string attention_text(const AttentionRequest& request, const AttentionResult& result);
[[nodiscard]] std::string attention_result_json(const AttentionRequest& request,
                                                const AttentionResult& result);

}  // namespace usp
