// SPDX-License-Identifier: Apache-2.0
#include "usp/schedule/plan.hpp"
#include "usp/schedule/rank_schedule.hpp"
#include "usp/schedule/scratch_rows.hpp"

namespace usp {
namespace {

using schedule::ScratchParts;
using schedule::ScratchRows;
using schedule::ScratchStep;

/// As Role of resources.hpp.
enum Part : int { q, k, v, d_o, dq };

/// Inputs whose rows are not whole pieces of 16 bytes are copied.
void add_inputs(const ScratchRows& rows, ScratchParts& parts) {
  const i64 dqk = rows.shape().head_dim_qk, dv = rows.shape().head_dim_v;
  if (dqk % 8 != 0) {
    parts.use(mma_traits, q, rows.of(Tensor::q, rows.query_heads(), schedule::rounded_up(dqk, 8), rows.io()));
    parts.use(mma_traits, k, rows.of(Tensor::k, rows.kv_heads(), schedule::rounded_up(dqk, 8), rows.io()));
  }
  if (dv % 8 != 0)
    parts.use(mma_traits, v, rows.of(Tensor::v, rows.kv_heads(), schedule::rounded_up(dv, 8), rows.io()));
}

/// dq that is rounded in the end, or whose elements do not lie in pairs, is summed in fp32.
void add_scratch(const ScratchStep& s, ScratchParts& parts) {
  const ScratchRows rows(s);
  add_inputs(rows, parts);
  if (!s.step.is(schedule::operations::attend_grad)) return;
  const i64 dqk = rows.shape().head_dim_qk, dv = rows.shape().head_dim_v;
  if (rows.type(Tensor::d_o) != rows.io() || dv % 8 != 0)
    parts.use(mma_traits, d_o,
              rows.of(Tensor::q, rows.query_heads(), schedule::rounded_up(dv, 8), rows.io()));
  if (s.grad_type != DType::fp32 || dqk % 2 != 0)
    parts.use(mma_traits, dq,
              rows.of(Tensor::q, rows.query_heads(), schedule::rounded_up(dqk, 2), DType::fp32));
}

}  // namespace

const BackendTraits mma_traits = {.word = "mma",
                                  .display_name = "mma",
                                  .generations = generations_from_sm_80,
                                  .summary = "this project's CUDA kernel, for all that GPUs compute",
                                  .on_gpu = true,
                                  .rounds_results = true,
                                  .takes = {.supports_fp32_fp64 = false, .max_head_dim = 256},
                                  .add_scratch = add_scratch};

}  // namespace usp
