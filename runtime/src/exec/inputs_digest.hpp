// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/memory.hpp"
#include "usp/runtime/attention_call.hpp"
#include "usp/schedule/plan.hpp"

#include <cstdint>

/// Digests of inputs: what ranks, and both passes, must hold alike.
namespace usp {

enum class DigestOf : std::uint8_t {
  content,   ///< reads a GPU's memory, which waits for its stream
  addresses  ///< costs nothing
};

/// Of per-head lists, block pattern, dropout seed and layer.
[[nodiscard]] std::uint64_t digest_of_lists(const AttentionPlan& plan, const AttentionInputs& inputs,
                                            kernels::Memory& memory, DigestOf what);
/// Of the rows of q, k and v that every rank holds; on the host.
[[nodiscard]] std::uint64_t digest_of_replicated_rows(const AttentionPlan& plan,
                                                      const AttentionInputs& inputs);

}  // namespace usp
