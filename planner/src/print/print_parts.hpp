// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/detail/axes.hpp"
#include "usp/planner/plan.hpp"

#include <string>
#include <vector>

/// Pieces that the text of a whole step and of one call share.
namespace usp {

/// "4.10 ms +-12%", and "uncalibrated" where it is.
[[nodiscard]] std::string time_text(double seconds, double band, bool calibrated);
/// Header of a column of times: "time", or "time (uncalibrated)".
[[nodiscard]] std::string time_header(const std::string& name, bool calibrated);

/// Which axis lies on which links, one line per axis.
[[nodiscard]] std::string where_text(const std::vector<AxisView>& axes);
/// World ranks of every group of ulysses and ring, for the launcher of a job.
[[nodiscard]] std::string groups_text(const std::vector<AxisView>& axes);

/// Of a layout: ", gated", ", gated in 3 phases", or nothing.
[[nodiscard]] std::string gated_text(bool gated, int phases);

/// Refused layouts by reason, most frequent first.
[[nodiscard]] std::string rejected_text(const std::vector<Rejection>& rejected);

/// A paragraph: title, then indented lines, a dash before each; empty where there are none.
[[nodiscard]] std::string list_text(const std::string& title, const std::vector<std::string>& lines);

/// The unmeasured inputs that decide the first place; empty where there are none.
[[nodiscard]] std::string guesses_text(const std::vector<GuessedInput>& guesses);

/// "12.3K".
[[nodiscard]] std::string rate_text(double per_second);

}  // namespace usp
