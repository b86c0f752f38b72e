// SPDX-License-Identifier: Apache-2.0
#include "usp/base/json.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/calibration.hpp"

#include <fmt/format.h>

namespace usp {

std::string summary_json(const CalibrationSummary& summary) {
  return Json{{"name", summary.name},
              {"calibrated", summary.calibrated},
              {"sources", summary.sources},
              {"comm_error", summary.comm_error},
              {"kernel_error", summary.kernel_error},
              {"extrapolations", summary.extrapolations}}
      .dump();
}

std::string summary_text(const CalibrationSummary& summary) {
  std::string text = "calibration " + summary.name;
  if (summary.calibrated)
    text += fmt::format(": measured links within {} of their curves, kernels {} of their fit (means)",
                        format_percent(summary.comm_error), format_percent(summary.kernel_error));
  else
    text += ": data-sheet rates, nothing measured";
  text += "\n";
  for (const std::string& source : summary.sources) text += fmt::format("  {}\n", source);
  if (!summary.extrapolations.empty())
    text += fmt::format("extrapolated: {}\n", fmt::join(summary.extrapolations, "; "));
  return text;
}

}  // namespace usp
