// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace usp {

/// Why a predicted time goes beyond what was measured; bits of Estimate::extrapolation.
enum class Extrapolation : std::uint32_t {
  none = 0,
  uncalibrated = 1U << 0,   ///< data-sheet numbers, nothing measured
  bytes = 1U << 1,          ///< larger or smaller than any measured transfer
  group_size = 1U << 2,     ///< between or above the measured numbers of ranks
  two_rank = 1U << 3,       ///< point-to-point priced from a two-rank collective
  platform = 1U << 4,       ///< scaled from another accelerator
  head_dim = 1U << 5,       ///< head dim without measurements
  length = 1U << 6,         ///< fewer or more rows or keys than measured
  full_mask = 1U << 7,      ///< full-mask rate from another part's table
  window = 1U << 8,         ///< sliding window priced by the causal fit
  backward = 1U << 9,       ///< backward pass from published forward/backward ratios
  element_type = 1U << 10,  ///< neither bf16 nor fp16
  inter_node = 1U << 11,    ///< NIC rate times an assumed efficiency
  link_class = 1U << 12,    ///< links measured on another host of the same kind
  all_reduce = 1U << 13,    ///< all-reduce as reduce-scatter and then all-gather
};

[[nodiscard]] constexpr std::uint32_t bits(Extrapolation e) {
  return static_cast<std::uint32_t>(e);
}

/// A predicted time with its uncertainty: the truth is expected in seconds * [1 / (1 + band), 1 + band].
struct Estimate {
  double seconds = 0;
  double band = 0;
  std::uint32_t extrapolation = 0;  ///< Extrapolation bits

  [[nodiscard]] bool extrapolated() const { return extrapolation != 0; }
  /// One after the other. The bands are of one calibration and may err together: they add, weighted by time.
  Estimate& operator+=(const Estimate& other) {
    const double sum = seconds + other.seconds;
    band = sum > 0 ? (band * seconds + other.band * other.seconds) / sum : 0;
    seconds = sum;
    extrapolation |= other.extrapolation;
    return *this;
  }
};

/// One phrase per bit, e.g. "head dim without measurements".
[[nodiscard]] std::vector<std::string> extrapolation_reasons(std::uint32_t extrapolation);

}  // namespace usp
