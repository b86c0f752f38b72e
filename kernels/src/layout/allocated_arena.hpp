// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/allocator.hpp"
#include "usp/kernels/memory.hpp"

#include <memory>

namespace usp::kernels {

/// Where an arena takes its memory, and the sum over the arenas of one Memory.
struct ArenaSource {
  Allocator* allocator = nullptr;
  int device = -1;
  CUstream_st* stream = nullptr;
  std::shared_ptr<i64> held_bytes;  ///< null: not counted
};

/// One block of an allocator. Growth releases the old block first, so that the peak is the greater of the
/// two.
class AllocatedArena final : public Arena {
 public:
  explicit AllocatedArena(ArenaSource source) : source_(std::move(source)) {}
  ~AllocatedArena() override { release(); }
  AllocatedArena(const AllocatedArena&) = delete;
  AllocatedArena& operator=(const AllocatedArena&) = delete;

  /// Throws EnvironmentError where the allocator has no room, UsageError where it gives memory off its
  /// boundary.
  void reserve(i64 bytes) override;
  [[nodiscard]] std::byte* data() const override { return data_; }
  [[nodiscard]] i64 bytes() const override { return bytes_; }
  void release() noexcept;

 private:
  ArenaSource source_;
  std::byte* data_ = nullptr;
  i64 bytes_ = 0;
};

}  // namespace usp::kernels
