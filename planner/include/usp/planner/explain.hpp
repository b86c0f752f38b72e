// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/plan_file.hpp"

#include <optional>
#include <string>
#include <vector>

namespace usp {

/// What to explain of a plan.
struct ExplainRequest {
  std::optional<int> rank;  ///< of one sequence-parallel group; empty: no schedule, tokens only
  Pass pass = Pass::forward;
  std::size_t layer = 0;                      ///< index into PlanFile::layers
  std::optional<std::vector<i64>> documents;  ///< of another batch; empty: those of the plan
};

/// Token to rank, rank to device, why this method, and the schedule of one rank tick by tick. Throws
/// UsageError for a rank or layer that is not there and for a batch beyond the plan's capacity.
[[nodiscard]] std::string explain_text(const PlanFile& plan, const ExplainRequest& request);
/// The same as one JSON object (schema: configs/schema/explain.v2.schema.json).
[[nodiscard]] std::string explain_json(const PlanFile& plan, const ExplainRequest& request);

}  // namespace usp
