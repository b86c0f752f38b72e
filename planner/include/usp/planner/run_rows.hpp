// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/calibration_file.hpp"
#include "usp/planner/score.hpp"
#include "usp/schedule/plan_file.hpp"
#include "usp/topology/cluster.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace usp {

/// Whether a text is a JSON document, and no table of rows.
[[nodiscard]] bool is_json_document(std::string_view text);

/// Rows of score of what `usp run --json`, `usp bench --json` or `usp bench --gpu --json` printed of `plan`:
/// one per pass. Throws InvalidInput for another document or version, keys or types that the format does not
/// have, for a run of another plan, of other
/// ranks or another type, for one that went wrong, was dry, looked at every step or has no times, and for
/// calls that rows do not describe: documents, windows, cross attention, unequal head dims, other methods
/// than the ring, head chunks, sinks and rules of scores; and where the request names another device or
/// kernel than the run computed with.
[[nodiscard]] std::vector<ScoreRow> run_rows(const std::string& text, const std::string& file,
                                             const PlanFile& plan);

/// Throws InvalidInput where such a run computed with what is no backend, or not with the library of a
/// calibration that names none, on other devices, or with several ranks on one GPU of a host of the cluster.
void check_run_machine(const std::string& text, const std::string& file, const CalibrationFile& calibration,
                       const topology::Cluster& cluster);

}  // namespace usp
