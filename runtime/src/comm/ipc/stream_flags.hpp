// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/device/device.hpp"

#include <cstdint>
#include <cuda.h>
#include <vector>

namespace usp::comm {

/// A word that one stream sets and another awaits; 0 until it is set.
using Flag = std::uint32_t;

/// Stream memory operations, enqueued by one call of the driver in the order of the calls here. Addresses are
/// device memory, a peer's too, or page-locked host memory. The current device is that of the stream.
class FlagOperations {
 public:
  FlagOperations();
  /// Writes a word after all earlier writes of the stream, copies included, are visible everywhere.
  void write(Flag* word, Flag value);
  /// Waits until a flag is set.
  void await(Flag* flag);
  void enqueue(device::StreamHandle stream);
  /// Drops what an error has kept from being enqueued.
  void clear() { operations_.clear(); }

 private:
  using Call = CUresult(CUDAAPI*)(CUstream, unsigned, CUstreamBatchMemOpParams*, unsigned);

  Call call_;
  std::vector<CUstreamBatchMemOpParams> operations_;
};

}  // namespace usp::comm
