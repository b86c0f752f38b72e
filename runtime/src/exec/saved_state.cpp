// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/saved_state.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

#include <utility>

namespace usp {

SavedState::SavedState(kernels::Memory& memory) : SavedState(memory.make_arena()) {}

SavedState::SavedState(std::unique_ptr<kernels::Arena> arena) : arena_(std::move(arena)) {}

SavedState SavedState::of_scratch(kernels::Memory& memory) {
  return SavedState(memory.make_scratch());
}

SavedState::SavedState(MemoryRef memory) {
  move_to(memory);
}

void SavedState::move_to(MemoryRef memory) {
  if (arena_ != nullptr)
    throw UsageError("the saved state owns its memory; make it with the caller's to move it");
  if (memory.bytes < 0)
    throw UsageError(
        fmt::format("the saved state's memory has {} bytes; a size is not negative", memory.bytes));
  if (memory.data == nullptr && memory.bytes > 0)
    throw UsageError(fmt::format("the saved state's {} bytes have no memory; give that which forward filled",
                                 memory.bytes));
  if (reinterpret_cast<std::uintptr_t>(memory.data) % alignment != 0)
    throw UsageError(fmt::format("the saved state's memory begins at {}; it needs a boundary of {} bytes",
                                 static_cast<const void*>(memory.data), alignment));
  memory_ = memory;
}

void SavedState::assume(std::shared_ptr<const Prepared> prepared) {
  forward_ = {.prepared = std::move(prepared), .assumed = true};
}

}  // namespace usp
