// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/plan.hpp"
#include "usp/schedule/plan_file.hpp"

#include <string>

/// Plan files made by the planner: recipes with their predictions.
namespace usp {

/// The recipe of a candidate of plan_step.
[[nodiscard]] PlanFile make_plan_file(const PlanRequest& request, const PlanCandidate& candidate);

/// Fills the predictions of a layer from its schedule: bytes, and, up to 64 ranks, the exact workspace and
/// the backends of the attend steps.
void predict_bytes(PlanLayer& layer, const Documents& documents, bool training, WorkspaceBasis& basis);

/// Derives bytes, exact workspaces and backends of steps again from the recipe. Throws InvalidInput that
/// names the first that the plan states otherwise: another version wrote it, or it was made by hand.
void check_predictions(const PlanFile& plan, const std::string& file);

[[nodiscard]] std::string model_digest(const Model& model);
[[nodiscard]] std::string workload_digest(const Workload& workload);

}  // namespace usp
