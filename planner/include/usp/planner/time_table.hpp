// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <utility>
#include <vector>

namespace usp {

/// Monotone time over bytes, in 8 linear pieces per power of two; one bit-field look-up, no logarithm.
class TimeTable {
 public:
  static constexpr int first_octave = 6;
  static constexpr int last_octave = 38;
  static constexpr int pieces = 8;
  static constexpr int nodes = (last_octave - first_octave) * pieces + 1;

  /// @param node_seconds time at each node, non-decreasing
  TimeTable() = default;
  explicit TimeTable(const std::array<double, nodes>& node_seconds);
  /// Through the isotonic fit of the points (pooled in log time), log-log between them, the first time below
  /// them, the last one's bandwidth above.
  static TimeTable through(std::vector<std::pair<double, double>> bytes_seconds);

  [[nodiscard]] double at(double bytes) const noexcept;
  [[nodiscard]] static double node_bytes(int node);

 private:
  std::array<double, nodes> seconds_{};
  std::array<double, nodes> per_byte_{};
};

/// Isotonic regression (pool adjacent violators) of log time over bytes; sorts by bytes, merges equal sizes
/// by their geometric mean.
[[nodiscard]] std::vector<std::pair<double, double>> isotonic(std::vector<std::pair<double, double>> points);

}  // namespace usp
