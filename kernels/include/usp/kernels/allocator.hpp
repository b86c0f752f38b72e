// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/types.hpp"

#include <cstddef>

struct CUstream_st;

namespace usp::kernels {

/// Source of the memory that a rank holds privately: workspace, saved states, scratch of kernels. A framework
/// gives its caching allocator. Called by the threads that use the memory's owners, one call at a time per
/// rank.
class Allocator {
 public:
  Allocator() = default;
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;
  virtual ~Allocator() = default;

  /// bytes > 0, on a boundary of `buffer_alignment` bytes. `device`: ordinal of the GPU, -1 for host
  /// memory. `stream`: the stream whose work uses the memory, from what is enqueued next; null on the host.
  /// Null where there is no room, which is the caller's EnvironmentError.
  [[nodiscard]] virtual std::byte* allocate(i64 bytes, int device, CUstream_st* stream) = 0;
  /// What allocate() gave, with its arguments. Work enqueued on `stream` so far may still use the memory.
  virtual void release(std::byte* memory, i64 bytes, int device, CUstream_st* stream) noexcept = 0;
  /// Memory that is held for reuse goes back to the device: another owner is about to take some.
  virtual void release_unused() noexcept {}
};

}  // namespace usp::kernels
