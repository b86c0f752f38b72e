// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/runtime/call_run.hpp"
#include "usp/schedule/slice.hpp"

#include <vector>

namespace usp {

/// What a call reads beside q, k and v; points into `tensors` and `blocks`.
[[nodiscard]] AttentionInputs per_head_inputs(const AttentionPlan& plan, const CallTensors& tensors,
                                              const kernels::BlockMask& blocks);

/// The mask of a whole call: one slice per document, rows being global tokens.
[[nodiscard]] std::vector<schedule::Slice> document_slices(const Band& band, const Documents& documents);

/// Visible pairs of all heads and batch rows, block patterns and dropout apart.
[[nodiscard]] double visible_pairs(const AttentionPlan& plan, const Documents& documents);
/// Of one visible pair of one query head: 2 per element of q.k and of p.v; 5 such products backward.
[[nodiscard]] double flops_per_pair(const AttentionShape& shape, Pass pass);

}  // namespace usp
