// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/calibration_file.hpp"
#include "usp/planner/score.hpp"
#include "usp/topology/cluster.hpp"

#include <string>
#include <vector>

namespace usp {

/// What measured calls changed of a calibration.
struct Correction {
  std::string curve;  ///< "kernels of cudnn", "alltoall of 4 ranks", "hops of 4 ranks"
  double factor = 1;  ///< of its times
  int rows = 0;       ///< that say so: their geometric mean
};

struct CorrectedCalibration {
  CalibrationFile content;
  std::vector<Correction> corrections;
};

/// Corrects the calibration of a cluster by calls that were measured on it, by one factor per curve: with it
/// the price of the call is its measured time. A row of one rank corrects the kernels of the backend that
/// computed its pass, first (the one of the row, or what that leaves the call to; where the row names none,
/// the one that plans take first); a row of Ulysses alone the all-to-all of its ranks, of a ring alone its
/// hops; the band of transfers then holds that of the price before, what the rows disagree in and the error
/// of the calls' kernels. Each correction is noted among the sources, with `file`. Throws InvalidInput,
/// naming the line, for a calibration of another cluster, rows without a time, rows of both axes or of two
/// backends, calls that no backend takes or whose backend was not measured, of transfers where the band of
/// the call's kernels explains the time, and where no factor explains it (up to 64 of kernels, up to 4 of
/// transfers).
[[nodiscard]] CorrectedCalibration add_rows(const CalibrationFile& content, const topology::Cluster& cluster,
                                            const std::vector<ScoreRow>& rows, const std::string& file);

}  // namespace usp
