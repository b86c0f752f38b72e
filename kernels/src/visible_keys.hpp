// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/slice.hpp"

#include <algorithm>
#include <utility>

namespace usp::kernels {

/// Keys of a slice that its query row i sees: with one band of position differences always one range.
[[nodiscard]] inline Range visible_keys(const schedule::Slice& s, i64 i) {
  const i64 x = s.q_pos + i * s.q_step;
  i64 least = x - s.diff_max - s.k_pos, most = x - s.diff_min - s.k_pos, step = s.k_step;
  if (step == 0) return least <= 0 && most >= 0 ? Range{0, s.k_count} : Range{0, 0};
  if (step < 0) {
    step = -step;
    std::swap(least, most);
    least = -least;
    most = -most;
  }
  const Range keys{std::max<i64>(0, schedule::slice_detail::ceil_div(least, step)),
                   std::min(s.k_count, schedule::slice_detail::floor_div(most, step) + 1)};
  return keys.empty() ? Range{0, 0} : keys;
}

}  // namespace usp::kernels
