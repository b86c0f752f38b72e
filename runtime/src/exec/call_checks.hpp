// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/attention_kernel.hpp"
#include "usp/runtime/attention_call.hpp"
#include "usp/runtime/prepared.hpp"
#include "usp/runtime/saved_state.hpp"

/// What a caller hands over, against the plan and the batch. None looks at an
/// element. What concerns tensors throws UsageError, naming tensor and remedy.
namespace usp {

/// Throws InvalidInput where a step of the batch has more rows than GPU kernels count (check_gpu_rows).
void check_gpu_steps(const schedule::RankSchedule& schedule, i64 batch);

/// That kernel and ranks can run the plan. Throws UsageError.
void check_runs_plan(const AttentionPlan& plan, const kernels::AttentionKernel& kernel, int ranks);
/// Shapes, types and presence of what both passes read.
void check_inputs(const Prepared& prepared, const AttentionInputs& in);
/// The results of a forward pass, and that their memory is theirs alone. The inputs are checked. `saved`:
/// memory of the caller's that forward writes; none where the saved state owns it.
void check_results(const Prepared& prepared, const AttentionInputs& in, const kernels::View& out,
                   const kernels::View& lse, const MemoryRef& saved = {});
/// The same of a backward pass, which reads `saved`. `out` is that of the forward pass it follows.
void check_gradients(const Prepared& prepared, const AttentionInputs& in, const kernels::ConstView& d_out,
                     const AttentionGradients& gradients, const kernels::ConstView& out,
                     const MemoryRef& saved = {});

}  // namespace usp
