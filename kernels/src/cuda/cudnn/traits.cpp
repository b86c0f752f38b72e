// SPDX-License-Identifier: Apache-2.0
#include "usp/schedule/plan.hpp"
#include "usp/schedule/rank_schedule.hpp"
#include "usp/schedule/scratch_rows.hpp"

namespace usp {
namespace {

using schedule::BandBlock;
using schedule::BlockSplit;
using schedule::ScratchParts;
using schedule::ScratchRows;
using schedule::ScratchStep;

/// As ScratchArenas of engine.hpp. Workspace was measured with cuDNN 9.19: 256 bytes forward; backward an
/// fp32 dQ and a sum per query row and head, and dK and dV per query head where KV heads are fewer.
enum Part : int { block, state, input, delta, workspace };

[[nodiscard]] BlockSplit divided(const ScratchStep& s, bool keeps_shift) {
  return schedule::split_into_blocks(cudnn_traits.takes, s.schedule.slices.data() + s.step.slices.begin,
                                     s.step.slices.count, keeps_shift);
}

[[nodiscard]] bool covers(const BlockSplit& share, i64 q_rows) {
  return share.rest.empty() && share.blocks.size() == 1 && share.blocks.front().q_rows == Range{0, q_rows};
}

/// Of what computes the rest of the plan's calls.
void add_fallback(const ScratchStep& s, ScratchParts& parts) {
  fallback_of(s.plan.backend, s.schedule.pass)->add_scratch(s, parts);
}

void add_attend(const ScratchStep& s, ScratchParts& parts) {
  const ScratchRows rows(s);
  const BlockSplit share = divided(s, false);
  const i64 heads = rows.query_heads(), dv = rows.shape().head_dim_v;
  const bool rounded = rows.type(Tensor::o) == rows.io();
  parts.use(cudnn_traits, workspace, 256);
  if (s.step.overwrite && !s.plan.sink && rounded && covers(share, rows.rows(Tensor::q))) {
    if (heads > 1) parts.use(cudnn_traits, block, align_buffer(rows.of(Tensor::q, heads, 1, DType::fp32)));
    return;
  }
  for (const BandBlock& b : share.blocks)
    parts.use(cudnn_traits, block,
              align_buffer(rows.bytes(b.q_rows.size(), heads, dv, rows.io())) +
                  align_buffer(rows.bytes(b.q_rows.size(), heads, 1, DType::fp32)));
  if (rows.type(Tensor::o) != DType::fp32)
    parts.use(cudnn_traits, state, align_buffer(rows.of(Tensor::q, heads, dv, DType::fp32)));
  if (!share.rest.empty()) add_fallback(s, parts);
}

/// The fallback needs a delta.
void leave_grad(const ScratchStep& s, ScratchParts& parts) {
  const ScratchRows rows(s);
  if (s.step[Tensor::delta] < 0)
    parts.use(cudnn_traits, delta, align_buffer(rows.of(Tensor::q, rows.query_heads(), 1, DType::fp32)));
  add_fallback(s, parts);
}

/// Gradients that cuDNN writes where they belong.
[[nodiscard]] bool whole(const ScratchStep& s, const ScratchRows& rows, const BlockSplit& share) {
  if (!s.step.overwrite || !covers(share, rows.rows(Tensor::q))) return false;
  const BandBlock& b = share.blocks.front();
  const Range keys{b.k_rows.begin + b.dk_shift, b.k_rows.end + b.dk_shift};
  return keys == Range{0, rows.rows(Tensor::dk)} && rows.type(Tensor::dq) == rows.io() &&
         rows.type(Tensor::dk) == rows.io() && rows.type(Tensor::dv) == rows.io();
}

[[nodiscard]] i64 grad_workspace(const ScratchRows& rows, const BandBlock& b) {
  const i64 dqk = rows.shape().head_dim_qk, dv = rows.shape().head_dim_v, heads = rows.query_heads();
  const i64 sums = rows.bytes(b.q_rows.size(), heads, dqk + 1, DType::fp32);
  const i64 keys = heads == rows.kv_heads() ? 0 : rows.bytes(b.k_rows.size(), heads, dqk + dv, rows.io());
  return sums + keys + buffer_alignment;
}

[[nodiscard]] i64 block_bytes(const ScratchRows& rows, const BandBlock& b) {
  const i64 dqk = rows.shape().head_dim_qk, dv = rows.shape().head_dim_v, kv = rows.kv_heads();
  return align_buffer(rows.bytes(b.q_rows.size(), rows.query_heads(), dqk, rows.io())) +
         align_buffer(rows.bytes(b.k_rows.size(), kv, dqk, rows.io())) +
         align_buffer(rows.bytes(b.k_rows.size(), kv, dv, rows.io())) +
         align_buffer(rows.bytes(b.q_rows.size(), rows.query_heads(), 1, DType::fp32));
}

void add_grad(const ScratchStep& s, ScratchParts& parts) {
  const ScratchRows rows(s);
  const BlockSplit share = divided(s, true);
  const i64 dqk = rows.shape().head_dim_qk, dv = rows.shape().head_dim_v;
  const i64 heads = rows.query_heads(), kv = rows.kv_heads();
  i64 inputs = 0;
  for (const Tensor tensor : {Tensor::o, Tensor::d_o})
    if (rows.type(tensor) != rows.io()) inputs += align_buffer(rows.of(Tensor::q, heads, dv, rows.io()));
  parts.use(cudnn_traits, input, inputs);
  for (const BandBlock& b : share.blocks) parts.use(cudnn_traits, workspace, grad_workspace(rows, b));
  if (whole(s, rows, share))
    return parts.use(cudnn_traits, block, align_buffer(rows.of(Tensor::q, heads, 1, DType::fp32)));
  for (const BandBlock& b : share.blocks) parts.use(cudnn_traits, block, block_bytes(rows, b));
  const bool wide = rows.type(Tensor::dq) == DType::fp32 && rows.type(Tensor::dk) == DType::fp32 &&
                    rows.type(Tensor::dv) == DType::fp32;
  if (!wide)
    parts.use(cudnn_traits, state,
              align_buffer(rows.of(Tensor::q, heads, dqk, DType::fp32)) +
                  align_buffer(rows.of(Tensor::dk, kv, dqk, DType::fp32)) +
                  align_buffer(rows.of(Tensor::dv, kv, dv, DType::fp32)));
  if (!share.rest.empty()) leave_grad({s.plan, s.schedule, s.step, DType::fp32}, parts);
}

void add_scratch(const ScratchStep& s, ScratchParts& parts) {
  const bool own = s.step.backend.use == Backend(cudnn_traits);
  if (s.step.is(schedule::operations::attend_grad)) return own ? add_grad(s, parts) : leave_grad(s, parts);
  if (own) return add_attend(s, parts);
  add_fallback(s, parts);
}

}  // namespace

const BackendTraits cudnn_traits = {
    .word = "cudnn",
    .display_name = "cuDNN",
    .generations = generations_from_sm_80,
    .summary = "NVIDIA's fused attention, with what it does not do left to the fallback",
    .on_gpu = true,
    .rounds_results = true,
    .carries_state = false,
    .preference = 1,
    .takes = {.supports_fp32_fp64 = false,
              .head_dim_step = 8,
              .max_head_dim = 256,
              .max_early_grad_head_dim = 128,
              .grad_compute_major = 9,
              .any_unequal_head_dims = false,
              .grad_dim_qk = 192,
              .grad_dim_v = 128,
              .softcap = false,
              .alibi = false,
              .dropout = false,
              .block_mask = false,
              .kv_group_spans_ranks = false,
              .grad_without_o = false,
              .deterministic_grad = false,
              .any_slices = false,
              .max_slices = 32,
              .max_blocks = 8},
    .fallback = &mma_traits,
    .add_scratch = add_scratch};

}  // namespace usp
