// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/score.hpp"
#include "usp/schedule/plan_file.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace usp {

/// Whether a text is a JSON document, and no table of rows.
[[nodiscard]] bool is_json_document(std::string_view text);

/// Rows of score of what `usp run --json`, `usp bench --json` or `usp bench --gpu --json` printed of `plan`:
/// one per pass. Throws InvalidInput for another document, for a run of another plan or one that went wrong,
/// and for calls that rows do not describe: documents, windows, cross attention, unequal head dims, other
/// methods than the ring.
[[nodiscard]] std::vector<ScoreRow> run_rows(const std::string& text, const std::string& file,
                                             const PlanFile& plan);

}  // namespace usp
