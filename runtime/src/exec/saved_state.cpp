// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/saved_state.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

namespace usp {

SavedState::SavedState(kernels::Memory& memory) : arena_(memory.make_arena()) {}

SavedState::SavedState(MemoryRef memory) {
  move_to(memory);
}

void SavedState::move_to(MemoryRef memory) {
  if (arena_ != nullptr)
    throw UsageError("the saved state owns its memory; make it with the caller's to move it");
  if (memory.bytes < 0 || reinterpret_cast<std::uintptr_t>(memory.data) % 256 != 0)
    throw UsageError(
        fmt::format("the saved state's memory is {} bytes at {}; it needs a boundary of 256 bytes",
                    memory.bytes, static_cast<const void*>(memory.data)));
  memory_ = memory;
}

}  // namespace usp
