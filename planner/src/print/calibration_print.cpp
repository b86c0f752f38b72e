// SPDX-License-Identifier: Apache-2.0
#include "usp/base/json.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/calibration.hpp"

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
    text += ": measured links within " + format_percent(summary.comm_error) + " of their curves, kernels " +
            format_percent(summary.kernel_error) + " of their fit (means)";
  else
    text += ": data-sheet rates, nothing measured";
  text += "\n";
  for (const std::string& source : summary.sources) text += "  " + source + "\n";
  if (!summary.extrapolations.empty()) text += "extrapolated: " + join(summary.extrapolations, "; ") + "\n";
  return text;
}

}  // namespace usp
