// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/error.hpp"
#include "usp/device/device.hpp"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace usp::comm {

/// Device memory for payloads that are not contiguous, in sizes of powers of two: a pass of the same messages
/// finds what an earlier one took, whatever its tickets. What is given back is used again in the order of one
/// stream.
class StagingPool {
 public:
  explicit StagingPool(int device) : device_(device) {}

  /// Throws UsageError where memory would have to be allocated while a stream captures.
  [[nodiscard]] device::DeviceBuffer take(i64 bytes, bool capturing) {
    const i64 size = size_of(bytes);
    std::vector<device::DeviceBuffer>& free = free_[size];
    if (free.empty()) {
      if (capturing)
        throw UsageError(
            "a captured call cannot allocate what NCCL's messages are packed in; run the same call once "
            "before capturing it");
      return device::DeviceBuffer(device_, size);
    }
    device::DeviceBuffer buffer = std::move(free.back());
    free.pop_back();
    return buffer;
  }
  void give(device::DeviceBuffer buffer) { free_[buffer.bytes()].push_back(std::move(buffer)); }

 private:
  static constexpr i64 least_bytes = i64{1} << 16;
  static i64 size_of(i64 bytes) {
    i64 size = least_bytes;
    while (size < bytes) size *= 2;
    return size;
  }
  int device_;
  std::map<i64, std::vector<device::DeviceBuffer>> free_;
};

}  // namespace usp::comm
