// SPDX-License-Identifier: Apache-2.0
#include "allocated_arena.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>

namespace usp::kernels {

void AllocatedArena::reserve(i64 bytes) {
  if (bytes <= bytes_) return;
  release();
  std::byte* const memory = source_.allocator->allocate(bytes, source_.device, source_.stream);
  const std::string place = source_.device < 0 ? "host" : fmt::format("GPU {}", source_.device);
  if (memory == nullptr)
    throw EnvironmentError(fmt::format(
        "the allocator has no room for {} bytes on the {}; free memory, or plan with a smaller workspace",
        bytes, place));
  if (reinterpret_cast<std::uintptr_t>(memory) % buffer_alignment != 0) {
    source_.allocator->release(memory, bytes, source_.device, source_.stream);
    throw UsageError(
        fmt::format("the allocator gave memory of the {} off a boundary of {} bytes; align it there", place,
                    buffer_alignment));
  }
  data_ = memory;
  bytes_ = bytes;
  if (source_.held_bytes != nullptr) *source_.held_bytes += bytes;
}

void AllocatedArena::release() noexcept {
  if (data_ == nullptr) return;
  source_.allocator->release(data_, bytes_, source_.device, source_.stream);
  if (source_.held_bytes != nullptr) *source_.held_bytes -= bytes_;
  data_ = nullptr;
  bytes_ = 0;
}

}  // namespace usp::kernels
