// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/types.hpp"

#include <string_view>

/// How a gated forward pass is cut into calls (AttentionPlan::gate_phases).
namespace usp::schedule {

/// The own block alone, and up to three lists of remote ones: more would attend few blocks each.
inline constexpr int max_gate_phases = 4;
/// Why plans without gates have no phases; reads on from the field's name.
inline constexpr std::string_view phases_without_gates =
    "is for gated plans: other calls await all that they attend; leave it out";

/// Blocks of a ring that calls 0 to `phase` of `phases` attend: the own one after the first, all after the
/// last, and from call to call the same multiple, rounded up: 1, 3, 8 of ring 8. A block takes about as long
/// to arrive as any other, and to attend: a call stalls least where what has been attended before it is in
/// the same ratio to what has to arrive for it as in every other call. Expects phases <= ring.
[[nodiscard]] constexpr int blocks_through_phase(int ring, int phases, int phase) {
  if (phase >= phases - 1) return ring;
  const auto power = [](i64 base, int exponent) {
    i64 product = 1;
    for (int i = 0; i < exponent; ++i) product *= base;
    return product;
  };
  const i64 wanted = power(ring, phase);
  int blocks = 1;
  while (power(blocks, phases - 1) < wanted) ++blocks;
  return blocks;
}

}  // namespace usp::schedule
