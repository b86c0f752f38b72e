// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/types.hpp"

#include <algorithm>

namespace usp::schedule {

/// A rectangle of query rows by key rows with one band of visible position differences. Row q_row + i lies
/// at position q_pos + i * q_step, row k_row + j at k_pos + j * k_step; visible iff diff_min <= q position -
/// k position <= diff_max. Full, causal, inverse causal, window and stripe are all this one kind; any mask is
/// a list of slices.
struct Slice {
  i64 q_row = 0, q_pos = 0, q_step = 1, q_count = 0;
  i64 k_row = 0, k_pos = 0, k_step = 1, k_count = 0;
  i64 dk_row = 0;  ///< row of the first key in dk and dv: a pruned partial holds fewer rows than its block
  i64 diff_min = -unbounded, diff_max = unbounded;
};

namespace slice_detail {

[[nodiscard]] inline i64 floor_div(i64 a, i64 b) {
  return a >= 0 ? a / b : -((-a + b - 1) / b);
}
[[nodiscard]] inline i64 ceil_div(i64 a, i64 b) {
  return -floor_div(-a, b);
}

/// Pairs (i, j), 0 <= i < n, 0 <= j < m, with i - j <= x.
[[nodiscard]] inline i128 pairs_at_most(i64 n, i64 m, i64 x) {
  // Row j holds clamp(x + j + 1, 0, n) pairs: zeros, then a ramp, then n.
  const i64 ramp_begin = std::clamp<i64>(-x, 0, m);
  const i64 ramp_end = std::clamp<i64>(n - x, ramp_begin, m);
  const i128 ramp = ramp_end - ramp_begin;
  const i64 first = x + ramp_begin + 1;
  return ramp * first + ramp * (ramp - 1) / 2 + i128{m - ramp_end} * n;
}

}  // namespace slice_detail

/// The band of i - j inside the rectangle, when both sides step alike (or one side has a single row).
[[nodiscard]] inline Range index_band(const Slice& s) {
  const i64 step = s.q_count == 1 ? s.k_step : s.q_step;
  const i64 origin = s.q_pos - s.k_pos;
  return {slice_detail::ceil_div(s.diff_min - origin, step),
          slice_detail::floor_div(s.diff_max - origin, step) + 1};
}

/// Visible pairs of a slice whose sides step alike.
[[nodiscard]] inline i128 area(const Slice& s) {
  const Range band = index_band(s);
  if (band.empty()) return 0;
  return slice_detail::pairs_at_most(s.q_count, s.k_count, band.end - 1) -
         slice_detail::pairs_at_most(s.q_count, s.k_count, band.begin - 1);
}

/// Shrinks the rectangle to rows and columns that hold a visible pair; false when there is none.
/// Expects equal steps or a side of one row.
[[nodiscard]] inline bool trim(Slice& s) {
  if (s.q_count <= 0 || s.k_count <= 0) return false;
  const Range band = index_band(s);
  if (band.empty()) return false;
  const i64 low = band.begin, high = band.end - 1;
  const i64 i0 = std::max<i64>(0, low), i1 = std::min(s.q_count - 1, s.k_count - 1 + high);
  if (i0 > i1) return false;
  const i64 j0 = std::max<i64>(0, i0 - high), j1 = std::min(s.k_count - 1, i1 - low);
  if (j0 > j1) return false;
  s.q_row += i0;
  s.q_pos += i0 * s.q_step;
  s.q_count = i1 - i0 + 1;
  s.k_row += j0;
  s.dk_row += j0;
  s.k_pos += j0 * s.k_step;
  s.k_count = j1 - j0 + 1;
  return true;
}

}  // namespace usp::schedule
