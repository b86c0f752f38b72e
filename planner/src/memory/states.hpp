// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/memory.hpp"

namespace usp {

/// The text that `make` writes where MemoryInput::reasons is set: a search prices thousands of tables that
/// are not printed.
template <class Make>
[[nodiscard]] std::string reason_of(const MemoryInput& in, const Make& make) {
  return in.reasons ? make() : std::string();
}

/// Layers of one pipeline stage: the first stages take one more where the split is uneven.
struct StageLayers {
  int first = 0;
  int last = 0;  ///< one past
};
[[nodiscard]] StageLayers stage_layers(const MemoryInput& input, int stage);

/// Appends parameters, gradients, optimizer states and the gathered layers of ZeRO-3.
void add_state_rows(const MemoryInput& input, int stage, MemoryTable& table);

[[nodiscard]] std::int64_t whole_bytes(double bytes);  ///< rounded up; refuses what no machine has

}  // namespace usp
