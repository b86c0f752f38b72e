// SPDX-License-Identifier: Apache-2.0
#include "join_slices.hpp"

#include <algorithm>

namespace usp::schedule {
namespace {

/// Adds the keys of `next` to `slice` where both are one slice.
[[nodiscard]] bool append(Slice& slice, const Slice& next) {
  const bool same_queries = slice.q_row == next.q_row && slice.q_count == next.q_count &&
                            slice.q_pos == next.q_pos && slice.q_step == next.q_step;
  const bool same_band = slice.diff_min == next.diff_min && slice.diff_max == next.diff_max;
  const bool continues = slice.k_row + slice.k_count == next.k_row &&
                         slice.dk_row + slice.k_count == next.dk_row && slice.k_step == next.k_step &&
                         slice.k_pos + slice.k_count * slice.k_step == next.k_pos;
  if (!same_queries || !same_band || !continues) return false;
  slice.k_count += next.k_count;
  return true;
}

}  // namespace

void join_slices(std::vector<Slice>& slices, std::size_t begin) {
  const auto first = slices.begin() + static_cast<std::ptrdiff_t>(begin);
  std::sort(first, slices.end(), [](const Slice& a, const Slice& b) {
    return a.q_row != b.q_row ? a.q_row < b.q_row : a.k_row < b.k_row;
  });
  auto last = first;
  for (auto next = first; next != slices.end(); ++next)
    if (next != last && !append(*last, *next)) *++last = *next;
  if (first != slices.end()) slices.erase(last + 1, slices.end());
}

}  // namespace usp::schedule
