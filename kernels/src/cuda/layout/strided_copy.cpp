// SPDX-License-Identifier: Apache-2.0
#include "strided_copy.hpp"

#include "usp/base/error.hpp"

#include <algorithm>

namespace usp::kernels::cuda {
namespace {

void check_region(const ConstView& view, const ViewRegion& region) {
  expects(region.rows.begin >= 0 && region.rows.end <= view.rows && region.heads.begin >= view.heads.begin &&
              region.heads.end <= view.heads.end,
          "a region reaches outside its tensor");
}

/// Drops axes of one element, orders by what is written and joins axes that continue each other.
void simplify(StridedCopy& copy, std::array<Axis, 3> outer, Axis inner) {
  std::stable_sort(outer.begin(), outer.end(), [](const Axis& a, const Axis& b) { return a.to > b.to; });
  std::array<Axis, 4> kept;  // innermost first
  std::size_t rank = 1;
  kept[0] = inner;
  for (std::size_t i = outer.size(); i-- > 0;) {
    const Axis& axis = outer[i];
    Axis& last = kept[rank - 1];
    if (axis.count == 1) continue;
    if (axis.from == last.count * last.from && axis.to == last.count * last.to)
      last.count *= axis.count;
    else
      kept[rank++] = axis;
  }
  copy.rank = static_cast<int>(rank);
  std::reverse_copy(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(rank), copy.axes.begin());
}

}  // namespace

StridedCopy region_copy(const ConstView& from, const ViewRegion& source, const View& to,
                        const ViewRegion& target, WriteMode mode) {
  check_region(from, source);
  check_region(to, target);
  expects(source.rows.size() == target.rows.size() && source.heads.size() == target.heads.size() &&
              from.width == to.width && from.batch == to.batch,
          "a region is copied to one of another shape");
  StridedCopy copy;
  copy.from_type = from.type;
  copy.to_type = to.type;
  copy.mode = mode;
  const i64 rows = std::max<i64>(source.rows.size(), 0), heads = std::max<i64>(source.heads.size(), 0);
  if (rows * heads * from.batch * from.width == 0) {
    copy.rank = 1;
    copy.axes[0] = {0, 1, 1};
    return copy;
  }
  copy.from = from.at(0, source.rows.begin, source.heads.begin);
  copy.to = to.at(0, target.rows.begin, target.heads.begin);
  simplify(copy,
           {Axis{rows, from.row_stride, to.row_stride}, Axis{from.batch, from.batch_stride, to.batch_stride},
            Axis{heads, from.head_stride, to.head_stride}},
           {from.width, 1, 1});
  return copy;
}

}  // namespace usp::kernels::cuda
