// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/message.hpp"

#include <algorithm>
#include <vector>

namespace usp::comm {

/// Appends regions whose payload is bytes [begin, end) of the payload of `region`, for any cut, runs
/// included. At most seven: each of three dimensions leaves a head and a tail.
inline void cut_region(const StridedBytes& region, i64 begin, i64 end, std::vector<StridedBytes>& out,
                       int dimension = 0) {
  if (begin >= end) return;
  if (dimension == 3) {
    out.push_back({.data = region.data + begin, .run_bytes = end - begin});
    return;
  }
  i64 unit = region.run_bytes;  // bytes of one index of this dimension
  for (int inner = dimension + 1; inner < 3; ++inner) unit *= region.count[inner];
  const i64 first = begin / unit;
  const i64 last = end / unit;  // the first index that is not there in full
  const auto at = [&](i64 index, i64 count) {
    StridedBytes part = region;
    part.data += index * region.stride[dimension];
    part.count[dimension] = count;
    return part;
  };
  if (first == last) {
    cut_region(at(first, 1), begin - first * unit, end - first * unit, out, dimension + 1);
    return;
  }
  i64 whole = first;
  if (begin > first * unit) {
    cut_region(at(first, 1), begin - first * unit, unit, out, dimension + 1);
    ++whole;
  }
  if (whole < last) out.push_back(at(whole, last - whole));
  cut_region(at(last, 1), 0, end - last * unit, out, dimension + 1);
}

/// Regions whose payload is bytes [begin, end) of the list's payload.
inline void cut_payload(const StridedBytes* regions, i64 count, i64 begin, i64 end,
                        std::vector<StridedBytes>& out) {
  out.clear();
  i64 at = 0;
  for (i64 i = 0; i < count && at < end; ++i) {
    const i64 bytes = regions[i].bytes();
    if (bytes > 0 && at + bytes > begin)
      cut_region(regions[i], std::max(begin - at, i64{0}), std::min(end - at, bytes), out);
    at += bytes;
  }
}

}  // namespace usp::comm
