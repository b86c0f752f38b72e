// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/geometry.hpp"

#include <algorithm>
#include <vector>

namespace usp {

/// Ring rows in stretches of equal runs. Remainders are dealt to the first rows, so that there are few.
class RowClasses {
 public:
  explicit RowClasses(const SequenceLayout& layout) {
    for (int r = 0; r < layout.ring(); ++r) {
      if (r > 0 && alike(layout.row(r - 1), layout.row(r)))
        rows_.back().end = r + 1;
      else
        rows_.push_back({r, r + 1});
    }
  }
  [[nodiscard]] const std::vector<Range>& all() const { return rows_; }

 private:
  static bool alike(const std::vector<Run>& a, const std::vector<Run>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const Run& x, const Run& y) { return x.count == y.count && x.step == y.step; });
  }
  std::vector<Range> rows_;
};

/// Rows outer * width + inner with outer and inner in a range each.
struct RowGrid {
  Range outer, inner;
  i64 width = 1;

  /// The first row of the grid in [begin, end); -1: none.
  [[nodiscard]] i64 first_in(i64 begin, i64 end) const {
    if (begin >= end || outer.empty() || inner.empty()) return -1;
    i64 o = begin / width, i = begin % width;
    if (o < outer.begin) o = outer.begin, i = 0;
    if (i >= inner.end) ++o, i = 0;
    const i64 row = o * width + std::max(i, inner.begin);
    return o < outer.end && row < end ? row : -1;
  }
  [[nodiscard]] i64 count_in(i64 begin, i64 end) const {
    return begin < end ? count_below(end) - count_below(begin) : 0;
  }

 private:
  [[nodiscard]] i64 count_below(i64 row) const {
    const i64 o = row / width, i = row % width;
    i64 count = (std::clamp(o, outer.begin, outer.end) - outer.begin) * inner.size();
    if (o >= outer.begin && o < outer.end) count += std::clamp(i, inner.begin, inner.end) - inner.begin;
    return count;
  }
};

}  // namespace usp
