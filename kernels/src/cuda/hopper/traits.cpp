// SPDX-License-Identifier: Apache-2.0
#include "tile_rows.hpp"

#include "usp/schedule/plan.hpp"
#include "usp/schedule/rank_schedule.hpp"
#include "usp/schedule/scratch_rows.hpp"

namespace usp {
namespace {

constexpr std::string_view hopper_cards[] = {"hopper"};

/// As the roles of resources.hpp that steps of this backend use.
enum Part : int { d_o, dq };

/// Rows of its head dims are read in place. dO of the accumulator type is rounded first, and dq that is
/// rounded in the end is summed in fp32, unless gradients are to repeat bit for bit, which no plan says.
void add_scratch(const schedule::ScratchStep& s, schedule::ScratchParts& parts) {
  if (s.step.backend.use != Backend(hopper_traits)) return hopper_traits.fallback->add_scratch(s, parts);
  if (!s.step.is(schedule::operations::attend_grad)) return;
  const schedule::ScratchRows rows(s);
  const i64 heads = rows.query_heads();
  if (rows.type(Tensor::d_o) != rows.io())
    parts.use(hopper_traits, d_o, rows.of(Tensor::q, heads, rows.shape().head_dim_v, rows.io()));
  const auto tile = kernels::hopper::grad_tile(rows.shape().head_dim_qk, rows.shape().head_dim_v,
                                               s.plan.score.softcap != 0);
  if (s.grad_type != DType::fp32 && tile.adds_dq())
    parts.use(hopper_traits, dq, rows.of(Tensor::q, heads, rows.shape().head_dim_qk, DType::fp32));
}

}  // namespace

const BackendTraits hopper_traits = {
    .word = "hopper",
    .display_name = "hopper",
    .generations = CardGenerations(hopper_cards),
    .summary = "this project's kernel for GPUs of compute capability 9.0; what it does not do goes to mma",
    .on_gpu = true,
    .rounds_results = true,
    .waits_inside = true,
    .takes = {.supports_fp32_fp64 = false,
              .head_dim_step = 8,
              .max_head_dim = 256,
              .min_compute_major = 9,
              .max_compute_major = 9,
              .negative_scale = false,
              .alibi = false,
              .dropout = false,
              .block_mask = false},
    .fallback = &mma_traits,
    .add_scratch = add_scratch};

}  // namespace usp
