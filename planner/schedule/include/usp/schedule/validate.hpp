// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/plan.hpp"

#include <string>

/// Rules of a plan of one attention call, for files, the C API and C++ callers alike.
namespace usp {

/// Throws InvalidInput unless `plan` can be expanded, priced and run: sizes in the ranges of
/// usp/schedule/limits.hpp, heads that divide, degrees and head chunks that leave none without a query head,
/// an outer ring only under double_ring, a band that shows some pair, finite scores, ranges that ascend
/// within their tokens, and bytes that 64 bits count. `where().token` names the field by its path
/// ("shape/kv_heads", "mesh/ulysses", "replicated_q/1"); `problem()` reads on from the field's name.
void check_attention_plan(const AttentionPlan& plan);

/// Throws UsageError unless the degrees are 1 to max_degree, the ring's product too, and the ranks at most
/// max_ranks.
void check_mesh(const Mesh& mesh);

/// Why AttentionPlan::gated has no meaning, in words that read on from the field's name; empty: it has
/// (schedule::may_gate).
[[nodiscard]] std::string gate_refusal(const Mesh& mesh, Method method, DkvReturn dkv_return);

/// Why no gated plan of this ring has so many AttentionPlan::gate_phases, likewise; empty: one has.
[[nodiscard]] std::string phases_refusal(int ring, int phases);

/// The part of it on which every expansion and price relies, whatever the plan is worth: TokenMap and
/// AttentionPricer ask it themselves. Ranges of all sizes, and bytes that 64 bits count.
void check_plan_sizes(const AttentionPlan& plan);

/// Why heads of one rank cannot be cut into so many chunks: "1000 head chunks for 8 query heads of a rank:
/// ...".
[[nodiscard]] std::string too_many_chunks(i64 chunks, i64 heads);

/// Why GPUs cannot run a plan for them: the rank that has most of its queries has more than max_gpu_rows of
/// them, times heads, in one step. Empty where nothing is known against it.
[[nodiscard]] std::string too_many_gpu_rows(const AttentionPlan& plan);

/// Throws InvalidInput where a step of an expanded schedule has more on a GPU: rows of queries or of keys.
void check_gpu_rows(i64 batch, i64 rows, i64 heads);

}  // namespace usp
