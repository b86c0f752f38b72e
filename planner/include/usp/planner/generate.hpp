// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/attention.hpp"
#include "usp/schedule/compact.hpp"

namespace usp {

/// Both passes of one attention call.
struct CompactSchedule {
  CompactPass forward;
  CompactPass backward;
  [[nodiscard]] const CompactPass& of(Pass pass) const { return pass == Pass::forward ? forward : backward; }
};

/// Lays out the schedule of a plan; pure, local, O(ring * head_chunks). `out` is cleared and refilled, so
/// that a search allocates nothing once it is warm. `shared_kv` tells whether some KV head is attended on
/// several ulysses ranks (Heads::shared_kv): then its dK/dV crosses the wire in the accumulator type. Expects
/// a legal plan (legality.hpp); throws InternalError on a broken invariant.
void generate(const AttentionPlan& plan, bool shared_kv, CompactSchedule& out);

}  // namespace usp
