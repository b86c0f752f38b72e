// SPDX-License-Identifier: Apache-2.0
#include "usp/schedule/generate.hpp"
#include "usp/schedule/heads.hpp"

namespace usp::schedule {
namespace {

/// Query rows times heads below which half of a block leaves a card idle: two tiles of 128 rows for each of
/// the 132 multiprocessors of an H100.
constexpr double least_half_rows = 2. * 128 * 132;

}  // namespace

bool may_split_own_block(const AttentionPlan& plan) {
  return plan.mesh.ring() > 1 && plan.dkv_return != DkvReturn::cycle;
}

bool splits_own_block(const AttentionPlan& plan) {
  if (!may_split_own_block(plan)) return false;
  const AttentionShape& shape = plan.shape;
  // Half of one KV group is a torn group, which some backends leave to their fallback.
  const bool halves_are_whole_groups = shape.kv_heads >= 2 * plan.mesh.ulysses * plan.head_chunks;
  if (!halves_are_whole_groups && !plan.backend.of(Pass::backward)->takes.kv_group_spans_ranks) return false;
  const i64 heads = shape.query_heads / (i64{2} * plan.mesh.ulysses * plan.head_chunks);
  const i64 rows = shape.q_tokens / plan.mesh.ring();
  // In floating point: shapes are asked about before 64 bits are known to count them.
  return static_cast<double>(shape.batch) * static_cast<double>(rows) * static_cast<double>(heads) >=
         least_half_rows;
}

bool may_gate(const AttentionPlan& plan) {
  return plan.mesh.ring() > 1 && plan.method->joins_remote_blocks && plan.dkv_return != DkvReturn::cycle;
}

bool rounds_once(const AttentionPlan& plan) {
  if (!plan.backend->rounds_results || plan.mesh.ring() > 1 || plan.dkv_return == DkvReturn::cycle)
    return false;
  if (!plan.replicated_q.empty() || !plan.replicated_k.empty()) return false;
  if (plan.head_chunks == 1) return true;
  // The gradient of a KV head must not be cut over chunks.
  const Heads heads(plan.shape.query_heads, plan.shape.kv_heads, plan.mesh.ulysses, plan.head_chunks);
  for (int u = 0; u < heads.ulysses(); ++u)
    for (int c = 0; c < heads.chunks(); ++c)
      if (!(heads.kv_new(u, c) == heads.kv_of(u, c))) return false;
  return true;
}

bool has_row_layout(const AttentionPlan& plan) {
  return plan.mesh.ulysses > 1 || !plan.replicated_q.empty() || !plan.replicated_k.empty();
}

bool computes_delta(const AttentionPlan& plan) {
  return plan.backend.of(Pass::backward)->takes.grad_without_o || plan.sink;
}

ScheduleKey schedule_key(const AttentionPlan& plan, bool shared_kv) {
  ScheduleKey key;
  key.ring_outer = plan.mesh.ring_outer;
  key.ring_inner = plan.mesh.ring_inner;
  key.head_chunks = plan.head_chunks;
  key.method = plan.method;
  key.dkv_return = plan.dkv_return;
  key.split_own_block = plan.split_own_block;
  key.gated = plan.gated && may_gate(plan);
  if (key.gated) key.gate_phases = plan.gate_phases;
  key.replicated_q = !plan.replicated_q.empty();
  key.replicated_k = !plan.replicated_k.empty();
  key.exchanged = has_row_layout(plan);
  key.shared_kv = shared_kv;
  key.direct = rounds_once(plan);
  key.delta = computes_delta(plan);
  key.prune = plan.prune;
  key.save_exchanged_qkv = plan.save_exchanged_qkv;
  key.sink = plan.sink;
  key.return_lse = plan.return_lse;
  return key;
}

}  // namespace usp::schedule
