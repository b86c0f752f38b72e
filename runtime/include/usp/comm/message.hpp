// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/types.hpp"

#include <cstddef>
#include <cstdint>

namespace usp::comm {

/// A strided region of bytes: count[0] x count[1] x count[2] runs of run_bytes, run (i, j, k) at data +
/// i*stride[0] + j*stride[1] + k*stride[2] (strides in bytes). Its payload is the runs in that order. What
/// one 2D copy, or one MPI vector type, can move.
struct StridedBytes {
  std::byte* data = nullptr;
  i64 count[3] = {1, 1, 1};
  i64 stride[3] = {0, 0, 0};
  i64 run_bytes = 0;
  [[nodiscard]] i64 bytes() const { return count[0] * count[1] * count[2] * run_bytes; }
};

/// One message of this rank. Both ends give equal payloads, each end may split it into regions differently.
struct Message {
  int peer = 0;
  bool send = false;
  /// Matches send to receive between two ranks; unique among messages in flight of one direction. Any value
  /// but the lowest, which is the collectives'; from 0 on is fastest on MPI.
  i64 tag = 0;
  std::int32_t tick = 0;                  ///< what errors name; < 0: outside a schedule
  const char* operation = "";             ///< what errors name; a string literal
  const StridedBytes* regions = nullptr;  ///< must stay valid until the message is complete
  i64 region_count = 0;
  [[nodiscard]] i64 bytes() const {
    i64 sum = 0;
    for (i64 i = 0; i < region_count; ++i) sum += regions[i].bytes();
    return sum;
  }
};

}  // namespace usp::comm
