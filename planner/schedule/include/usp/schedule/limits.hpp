// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/compact.hpp"
#include "usp/schedule/slice.hpp"
#include "usp/schedule/types.hpp"

#include <cstdint>
#include <initializer_list>
#include <limits>

/// The range of every quantity of an attention call, each with what imposes it. Flags, files, the search and
/// the C API share these ranges; check_attention_plan and check_workload refuse what lies outside.
namespace usp {

/// Ring rows and Ulysses columns: RingShift and RingOffsets count ring offsets in 16 bits, and the end of a
/// range of offsets is the degree itself.
inline constexpr int max_degree = std::numeric_limits<std::int16_t>::max();
/// Ranks of a step, all axes together: devices are numbered in an int, and so are sums of two of them.
inline constexpr i64 max_ranks = i64{1} << 24;
/// Query and KV heads: as many as can each have a rank of the Ulysses axis.
inline constexpr int max_heads = max_degree;
/// Width of a head: the widest that kernels are priced for (AttentionCostModel).
inline constexpr int max_head_dim = 1024;
/// Tokens of a sequence: a difference of two positions that no mask reaches.
inline constexpr i64 max_tokens = unbounded;
/// Rows of a batch. Products with tokens, heads and widths are bounded by max_call_bytes.
inline constexpr i64 max_batch = i64{1} << 24;
/// Tokens of all rows that one replica has in a step: what a double counts.
inline constexpr i64 max_step_tokens = i64{1} << 53;
/// Head chunks: Work and HeadSelect number them in 16 bits, and splitting heads into them takes time in the
/// square of their number.
inline constexpr int max_head_chunks = 1024;
/// Ring rows times head chunks: a schedule lists transfers and work of each tick, about one kilobyte.
inline constexpr i64 max_units = i64{1} << 20;
/// Documents of a batch: each is cut at the borders of every row.
inline constexpr i64 max_documents = i64{1} << 20;
/// Bytes of the largest tensor of a call over all ranks, in the type in which it is summed, times the ring
/// rows it travels. A pass sends each of at most 16 such tensors once, and two passes are added.
inline constexpr i64 max_call_bytes = i64{1} << 57;
/// Batch x rows x heads of one step on a GPU: its kernels number them in 31 bits.
inline constexpr i64 max_gpu_rows = std::numeric_limits<std::int32_t>::max();

static_assert(max_degree <= std::numeric_limits<decltype(RingOffsets::end)>::max());
static_assert(max_degree <= std::numeric_limits<decltype(RingShift::inner)>::max());
static_assert(-max_degree >= std::numeric_limits<decltype(RingShift::outer)>::min(), "shifts go both ways");
static_assert(max_head_chunks <= std::numeric_limits<decltype(schedule::ComputeOp::chunk)>::max());
static_assert(max_head_chunks <= std::numeric_limits<decltype(schedule::HeadSelect::chunk)>::max());
static_assert(max_units + 3 <= std::numeric_limits<decltype(schedule::ComputeOp::tick)>::max(),
              "a tick per unit, three more");
static_assert(max_units + 3 <= std::numeric_limits<decltype(schedule::TransferOp::due)>::max());
static_assert(i64{max_degree} * max_degree <= std::numeric_limits<int>::max(), "Mesh::size() of any degrees");
static_assert(2 * max_ranks <= std::numeric_limits<int>::max());
static_assert(max_tokens <= unbounded, "no mask reaches farther than the tokens");
static_assert(max_tokens <= std::numeric_limits<decltype(schedule::Slice::q_pos)>::max() / 8,
              "sums of four positions");
static_assert(max_call_bytes <= std::numeric_limits<i64>::max() / 32, "16 tensors, two passes");

/// Degrees multiplied: the ranks they make, or max_ranks + 1 where they are more.
[[nodiscard]] inline i64 ranks_of(std::initializer_list<i64> degrees) {
  i64 ranks = 1;
  for (const i64 degree : degrees)
    if ((ranks *= degree) > max_ranks) return max_ranks + 1;
  return ranks;
}

}  // namespace usp
