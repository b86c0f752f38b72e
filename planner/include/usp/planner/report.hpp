// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/plan.hpp"
#include "usp/planner/whatif.hpp"

#include <string>

namespace usp {

/// What a report shows; the pointers must outlive the call.
struct ReportInput {
  const PlanRequest* request = nullptr;
  const PlanResult* plan = nullptr;
  const WhatIfResult* sweep = nullptr;  ///< over the sequence length (its first axis); none: no curves
};

/// One self-contained HTML file: no network, no scripts; light and dark by the reader's preference. Every
/// figure has a title, a description and its numbers as a table. All text of the input is escaped.
[[nodiscard]] std::string report_html(const ReportInput& input);

/// What `usp report --json` prints of a written report, one JSON object (schema:
/// configs/schema/report.v2.schema.json).
[[nodiscard]] std::string report_json(const PlanRequest& request, const std::string& file);

/// The sweep that a report shows: powers of two around the request's sequence length. Updates the request's
/// progress. Empty for packed documents, and on machines so large that it takes too long.
[[nodiscard]] WhatIfResult report_sweep(const PlanRequest& request);

}  // namespace usp
