// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/slice.hpp"

#include <vector>

/// The pairs of slices, one by one.
namespace usp::test {

[[nodiscard]] inline bool sees(const schedule::Slice& s, i64 row, i64 key) {
  const i64 i = row - s.q_row, j = key - s.k_row;
  if (i < 0 || i >= s.q_count || j < 0 || j >= s.k_count) return false;
  const i64 apart = s.q_pos + i * s.q_step - s.k_pos - j * s.k_step;
  return apart >= s.diff_min && apart <= s.diff_max;
}

[[nodiscard]] inline i64 visible_pairs(const std::vector<schedule::Slice>& slices) {
  i64 count = 0;
  for (const schedule::Slice& s : slices)
    for (i64 row = s.q_row; row < s.q_row + s.q_count; ++row)
      for (i64 key = s.k_row; key < s.k_row + s.k_count; ++key) count += sees(s, row, key) ? 1 : 0;
  return count;
}

}  // namespace usp::test
