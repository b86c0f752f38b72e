// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/compact.hpp"
#include "usp/schedule/plan.hpp"
#include "usp/schedule/stage_graph.hpp"

namespace usp::schedule {

/// Both passes of one attention call.
struct CompactSchedule {
  CompactPass forward;
  CompactPass backward;
  StageGraph stages;
  [[nodiscard]] const CompactPass& of(Pass pass) const { return pass == Pass::forward ? forward : backward; }
};

/// All that the schedule of a plan depends on: equal keys, equal schedules. Layout, placement, heads and
/// tokens are not among it, which a search uses.
struct ScheduleKey {
  int ring_outer = 0, ring_inner = 0, head_chunks = 0;
  Method method;
  DkvReturn dkv_return = DkvReturn::circulate;
  bool split_own_block = false, gated = false;
  int gate_phases = 1;
  bool exchanged = false;  ///< row layout differs from home layout
  bool replicated_q = false, replicated_k = false, shared_kv = false;
  bool direct = false;  ///< rounds_once()
  bool delta = true;    ///< computes_delta()
  bool prune = false, save_exchanged_qkv = false, sink = false, return_lse = false;
  friend bool operator==(const ScheduleKey&, const ScheduleKey&) = default;
};
/// Every query row meets all its keys in one step of a backend that rounds results itself: then results are
/// computed in the input type at once and, without an exchange, straight in the caller's tensors.
[[nodiscard]] bool rounds_once(const AttentionPlan& plan);
/// Whether rows and heads are exchanged before attention: row layout differs from home layout. Where it does
/// not, backward reads the caller's o, and forward saves none.
[[nodiscard]] bool has_row_layout(const AttentionPlan& plan);
/// Backward begins with rowsum(dO * O): not for a backend that takes it from O itself, unless a sink's
/// gradient is summed from it.
[[nodiscard]] bool computes_delta(const AttentionPlan& plan);
/// Whether AttentionPlan::split_own_block has a meaning: some dK/dV returns to an own block that stays at
/// home.
[[nodiscard]] bool may_split_own_block(const AttentionPlan& plan);
/// Whether AttentionPlan::split_own_block shortens backward: there is a return to hide, and halves of the own
/// block that still fill a card and that the backend computes.
[[nodiscard]] bool splits_own_block(const AttentionPlan& plan);
/// Whether AttentionPlan::gated has a meaning: the remote blocks of a tick come straight from their owners to
/// memory that holds them all. Not with DkvReturn::cycle, whose own block travels first.
[[nodiscard]] bool may_gate(const AttentionPlan& plan);
[[nodiscard]] ScheduleKey schedule_key(const AttentionPlan& plan, bool shared_kv);

/// Whether a schedule says which buffers its names mean. Memory and expansion need it; times and bytes do
/// not.
enum class Binds : std::uint8_t { with, without };

/// Lays out the schedule of a plan; pure, local, O(ring * head_chunks). `out` is cleared and refilled, so
/// that a search does not allocate after the first call. `shared_kv`: whether some KV head is attended on
/// several ulysses ranks (Heads::shared_kv): then its dK/dV crosses the wire in the accumulator type. Expects
/// a legal plan (legality.hpp); throws InternalError on a broken invariant.
void generate(const AttentionPlan& plan, bool shared_kv, CompactSchedule& out, Binds binds = Binds::with);

}  // namespace usp::schedule
