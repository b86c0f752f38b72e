// SPDX-License-Identifier: Apache-2.0
#include "usp/schedule/geometry.hpp"

#include <algorithm>

namespace usp::schedule {

i64 total(const Intervals& set) {
  i64 sum = 0;
  for (const Range& range : set) sum += range.size();
  return sum;
}

void normalize(Intervals& set) {
  std::sort(set.begin(), set.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::size_t kept = 0;
  for (const Range& range : set) {
    if (range.empty()) continue;
    if (kept > 0 && range.begin <= set[kept - 1].end)
      set[kept - 1].end = std::max(set[kept - 1].end, range.end);
    else
      set[kept++] = range;
  }
  set.resize(kept);
}

Intervals intersect(const Intervals& a, const Intervals& b) {
  Intervals both;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const Range common{std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end)};
    if (!common.empty()) both.push_back(common);
    if (a[i].end < b[j].end)
      ++i;
    else
      ++j;
  }
  return both;
}

Intervals subtract(const Intervals& a, const Intervals& b) {
  Intervals rest;
  std::size_t j = 0;
  for (Range range : a) {
    while (j < b.size() && b[j].end <= range.begin) ++j;
    for (std::size_t i = j; i < b.size() && b[i].begin < range.end; ++i) {
      if (b[i].begin > range.begin) rest.push_back({range.begin, b[i].begin});
      range.begin = std::max(range.begin, b[i].end);
    }
    if (!range.empty()) rest.push_back(range);
  }
  return rest;
}

}  // namespace usp::schedule
