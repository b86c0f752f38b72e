// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/attention_cost_model.hpp"

#include <vector>

/// The inverse of AttentionCostModel: its coefficients from measured calls.
namespace usp {

struct KernelSample {
  KernelShape shape;
  bool backward = false;
  double seconds = 0;
};

/// Nonnegative least squares: x >= 0 that makes |A x - b| least, by trying every set of columns that are not
/// zero. @param a rows of equal length, at most 12. Throws InvalidInput for fewer rows than columns.
[[nodiscard]] std::vector<double> nonnegative_least_squares(const std::vector<std::vector<double>>& a,
                                                            const std::vector<double>& b);

/// Fits `data.fits` and `data.backward`, one entry per head dim, to samples of causal and full masks by least
/// squares of relative errors; windows only count for KernelFit::window_mape. `data` states multiprocessors,
/// tile and type of the elements. Where times hardly grow with the work, scores alone are fitted, and the
/// errors say so. Throws InvalidInput for a head dim with fewer than six forward samples, or with times that
/// are none.
[[nodiscard]] KernelData fit_kernels(KernelData data, const std::vector<KernelSample>& samples);

}  // namespace usp
