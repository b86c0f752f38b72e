// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/message.hpp"

#include <algorithm>
#include <vector>

namespace usp::comm {

/// Appends boxes whose payload is bytes [begin, end) of the payload of `box`, for any cut, runs included. At
/// most seven: each of three dimensions leaves a head and a tail.
inline void cut_box(const ByteBox& box, i64 begin, i64 end, std::vector<ByteBox>& out, int dimension = 0) {
  if (begin >= end) return;
  if (dimension == 3) {
    out.push_back({.data = box.data + begin, .run_bytes = end - begin});
    return;
  }
  i64 unit = box.run_bytes;  // bytes of one index of this dimension
  for (int inner = dimension + 1; inner < 3; ++inner) unit *= box.count[inner];
  const i64 first = begin / unit;
  const i64 last = end / unit;  // the first index that is not there in full
  const auto at = [&](i64 index, i64 count) {
    ByteBox part = box;
    part.data += index * box.stride[dimension];
    part.count[dimension] = count;
    return part;
  };
  if (first == last) {
    cut_box(at(first, 1), begin - first * unit, end - first * unit, out, dimension + 1);
    return;
  }
  i64 whole = first;
  if (begin > first * unit) {
    cut_box(at(first, 1), begin - first * unit, unit, out, dimension + 1);
    ++whole;
  }
  if (whole < last) out.push_back(at(whole, last - whole));
  cut_box(at(last, 1), 0, end - last * unit, out, dimension + 1);
}

/// Boxes whose payload is bytes [begin, end) of the list's payload.
inline void cut_payload(const ByteBox* boxes, i64 count, i64 begin, i64 end, std::vector<ByteBox>& out) {
  out.clear();
  i64 at = 0;
  for (i64 i = 0; i < count && at < end; ++i) {
    const i64 bytes = boxes[i].bytes();
    if (bytes > 0 && at + bytes > begin)
      cut_box(boxes[i], std::max(begin - at, i64{0}), std::min(end - at, bytes), out);
    at += bytes;
  }
}

}  // namespace usp::comm
