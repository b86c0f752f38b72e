// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/calibration.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

namespace usp {

CalibrationSummary Calibration::summary(std::uint32_t extrapolation) const {
  CalibrationSummary summary;
  summary.name = calibrated ? name : "uncalibrated";
  summary.calibrated = calibrated;
  for (const CalibrationSource& source : sources)
    summary.sources.push_back(
        fmt::format("{}: {}, {} ({})", source.measurement, source.source, source.version, source.licence));
  summary.comm_error = comm.mean_error();
  summary.kernel_error = kernel.mean_error();
  summary.extrapolations = extrapolation_reasons(extrapolation);
  if (!other_card.empty()) summary.extrapolations.push_back(other_card);
  return summary;
}

Calibration uncalibrated(const DataSheet& sheet) {
  if (!(sheet.bf16_tflops > 0))
    throw MissingValue({"data sheet", 0, ""}, "bf16 peak",
                       "name the card with --device or give a calibration");
  if (!(sheet.memory_gb_s > 0))
    throw MissingValue({"data sheet", 0, ""}, "memory bandwidth",
                       "name the card with --device or give a calibration");
  if (!(sheet.link_gb_s > 0))
    throw MissingValue({"data sheet", 0, ""}, "link bandwidth",
                       "give it in the cluster file, or measured curves with --curves");
  Calibration calibration;
  calibration.name = "uncalibrated";
  calibration.comm = TransferModel::alpha_beta(sheet.alpha_s, sheet.link_gb_s);
  calibration.kernel = AttentionCostModel::constant(sheet.bf16_tflops, sheet.efficiency, sheet.memory_gb_s);
  return calibration;
}

}  // namespace usp
