// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/geometry.hpp"

#include <vector>

namespace usp {

/// What one query row has to do against some key blocks, per head.
struct BlockShape {
  double rows = 0;  ///< query rows that see anything
  double keys = 0;  ///< key rows that are seen
  double area = 0;  ///< visible pairs
  [[nodiscard]] bool full() const { return area == rows * keys; }
  friend bool operator==(const BlockShape& a, const BlockShape& b) {
    return a.rows == b.rows && a.keys == b.keys && a.area == b.area;
  }
};

/// The block shapes that can be the slowest of a tick, over all ring rows: a kernel's time grows with rows,
/// keys and keys per row, so a shape that another one matches or exceeds in all three is left out.
using ParetoFront = std::vector<BlockShape>;

/// For each ring offset (and for all remote blocks together) the shapes to price. Independent of heads and of
/// the ulysses axis.
class WorkProfile {
 public:
  /// @param geometry of the plan (its mesh may have any ulysses degree)
  explicit WorkProfile(const schedule::TokenMap& geometry);

  /// Index of the front of one unit; units with equal fronts share it.
  [[nodiscard]] int front_of(RingOffsets offsets) const {
    return offsets.count() > 1 ? remote_ : by_delta_[static_cast<std::size_t>(offsets.begin)];
  }
  [[nodiscard]] const ParetoFront& pareto_front(int index) const {
    return fronts_[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] std::size_t fronts() const { return fronts_.size(); }
  /// Visible pairs per head over all rows and blocks.
  [[nodiscard]] double total_area() const { return total_area_; }

 private:
  void by_difference(const schedule::TokenMap& geometry);
  void by_class(const schedule::TokenMap& geometry);
  void gather_by_class(const schedule::TokenMap& geometry);
  void by_row(const schedule::TokenMap& geometry);
  [[nodiscard]] static ParetoFront all_remote(const std::vector<BlockShape>& shapes, int ring);
  int keep(ParetoFront pareto_front);

  std::vector<ParetoFront> fronts_;
  std::vector<int> by_delta_;
  int remote_ = -1;
  double total_area_ = 0;
};

}  // namespace usp
