// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/plan.hpp"
#include "usp/planner/whatif.hpp"

#include <string>
#include <vector>

namespace usp {

/// Plans around the request's, for the sliders of a report: one result over the product of all axes, or one
/// per axis where the product would take too long. The request's own value is among those of every axis.
struct ReportSweep {
  std::vector<WhatIfResult> results;
};

/// What a report shows; the pointers must outlive the call.
struct ReportInput {
  const PlanRequest* request = nullptr;
  const PlanResult* plan = nullptr;
  const ReportSweep* sweep = nullptr;  ///< none: no sliders
  std::string arguments;               ///< of `usp plan`, quoted for a shell, that ask for this plan
};

/// One self-contained HTML file that loads nothing: a template of page/, in it the plan as text and
/// report_data_json, which its scripts draw. Light and dark by the reader's preference. All text of the input
/// is escaped.
[[nodiscard]] std::string report_html(const ReportInput& input);

/// What the page draws, one JSON object: "plan" is the document of `usp plan --json`, beside it the
/// candidates' terms and memory, the machine with the rank of every device, the schedule of the best
/// candidate's ranks by tick, the sweep, and commands.
[[nodiscard]] std::string report_data_json(const ReportInput& input);

/// What `usp report --json` prints of a written report, one JSON object (schema:
/// configs/schema/report.v2.schema.json).
[[nodiscard]] std::string report_json(const PlanRequest& request, const std::string& file);

/// Sequence lengths around the request's, rates of the NICs, numbers of hosts; an axis that the request
/// cannot vary is left out. Updates the request's progress. Empty on machines so large that it takes too
/// long.
/// @param plan of the request: how long another one takes
[[nodiscard]] ReportSweep report_sweep(const PlanRequest& request, const PlanResult& plan);

}  // namespace usp
