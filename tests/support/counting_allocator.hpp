// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/allocator.hpp"

#include <new>

namespace usp::test {

/// Counts what it gives from the heap.
class CountingAllocator final : public kernels::Allocator {
 public:
  std::byte* allocate(i64 bytes, int /*device*/, CUstream_st* /*stream*/) override {
    held_bytes += bytes;
    ++allocations;
    return static_cast<std::byte*>(::operator new(static_cast<std::size_t>(bytes), boundary));
  }
  void release(std::byte* memory, i64 bytes, int /*device*/, CUstream_st* /*stream*/) noexcept override {
    held_bytes -= bytes;
    ::operator delete(memory, boundary);
  }
  i64 held_bytes = 0, allocations = 0;

 private:
  static constexpr std::align_val_t boundary{static_cast<std::size_t>(buffer_alignment)};
};

}  // namespace usp::test
