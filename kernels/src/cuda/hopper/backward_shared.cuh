// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "claims.cuh"
#include "tile.cuh"

/// Shared memory of the backward kernel: who waits for whom.
namespace usp::kernels::hopper {

/// What the kernels that keep a tile of keys have in common. `stages` of Q, `o_stages` of dO.
template <class T_, int Dk_, int Dv_, int key_rows_, int step_rows_, int stages_, int o_stages_>
struct KeyTileShape {
  using T = T_;
  static constexpr int Dk = Dk_, Dv = Dv_, key_rows = key_rows_, step_rows = step_rows_;
  static constexpr int stages = stages_, o_stages = o_stages_, claim_slots = 2;
  static constexpr int consumers = 2, threads = 128 * (consumers + 1), consumer_warps = 4 * consumers;
  /// The warpgroups read each other's tiles of dS.
  static constexpr bool shares_scores = false;
  static constexpr int k_bytes = key_rows * Dk * 2, v_bytes = key_rows * Dv * 2;
  static constexpr int q_bytes = step_rows * Dk * 2, o_bytes = step_rows * Dv * 2;
  /// A tile of dS or of P.
  static constexpr int score_bytes = key_rows * step_rows * 2;
  static constexpr int box_columns = 32, box_bytes = sum_rows * box_columns * 4;
  /// A warpgroup's tile of dQ.
  static constexpr int dq_rows = 64, dq_columns = tile_columns, dq_bytes = dq_rows * dq_columns * 4;
};

/// Two stages of 128 rows leave as much room as three of 64.
template <class T, int Dk, int Dv, int stages = backward_key_tile(Dk).step == 128 ? 2 : 3>
struct BackwardShape
    : KeyTileShape<T, Dk, Dv, backward_key_tile(Dk).keys, backward_key_tile(Dk).step, stages, stages> {
  static constexpr int score_tiles = 2, dq_tiles = 2;
  static constexpr bool shares_scores = true;
  /// Each warpgroup has half the rows of dQ of a step, else half the columns.
  static constexpr bool halves_rows = BackwardShape::step_rows == 2 * BackwardShape::dq_rows;
  static_assert(Dk == (halves_rows ? 1 : 2) * BackwardShape::dq_columns);
};

/// A claim as the block's warps read it; row -1: no more work.
struct GradClaim {
  int row, row_end, kv_head, batch, steps, segment_begin, segment_end, head_begin, head_end, block, unused[2];
};

/// Query rows of a step, from the first on, that a key row sees.
struct StepInterval {
  std::uint8_t begin, end;
  __device__ __forceinline__ operator Interval() const { return {begin, end}; }
};

/// What the consumers need to know of a step.
struct StepNote {
  std::int16_t masked, loads_keys;
  std::int16_t continues, ends;  ///< the next step has the same keys; there is none
  int row, head;
};

/// Where dQ of a tile of dS goes.
struct QueryPlace {
  int row, head;
};

/// Shared memory of a block.
template <class S>
struct BackwardShared {
  static constexpr int k = 0, v = k + S::k_bytes, q = v + S::v_bytes, d_o = q + S::stages * S::q_bytes,
                       scores = d_o + S::o_stages * S::o_bytes, dq = scores + S::score_tiles * S::score_bytes,
                       rows = dq + S::dq_tiles * S::dq_bytes,
                       intervals = rows + S::stages * S::step_rows * 2 * static_cast<int>(sizeof(float)),
                       claims = intervals + S::stages * S::key_rows * static_cast<int>(sizeof(StepInterval)),
                       notes = claims + S::claim_slots * static_cast<int>(sizeof(GradClaim)),
                       places = notes + S::stages * static_cast<int>(sizeof(StepNote)),
                       barriers = places + S::consumer_warps * static_cast<int>(sizeof(QueryPlace));
  static constexpr int shared_scores = S::shares_scores ? S::score_tiles : 0;
  static constexpr int barrier_count =
      2 * S::claim_slots + 3 + 3 * S::stages + 2 * S::o_stages + 2 * shared_scores;
  static constexpr int bytes = barriers + 8 * barrier_count;

  [[nodiscard]] __device__ __forceinline__ Barrier barrier(int index) const {
    return {block_address(barriers + 8 * index)};
  }
  [[nodiscard]] __device__ __forceinline__ Barrier claim_full(int i) const { return barrier(i); }
  [[nodiscard]] __device__ __forceinline__ Barrier claim_empty(int i) const {
    return barrier(S::claim_slots + i);
  }
  static constexpr int keys = 2 * S::claim_slots, steps = keys + 3;
  [[nodiscard]] __device__ __forceinline__ Barrier keys_landed() const { return barrier(keys); }
  [[nodiscard]] __device__ __forceinline__ Barrier keys_full() const { return barrier(keys + 1); }
  [[nodiscard]] __device__ __forceinline__ Barrier keys_empty() const { return barrier(keys + 2); }
  [[nodiscard]] __device__ __forceinline__ Barrier q_full(int i) const { return barrier(steps + i); }
  [[nodiscard]] __device__ __forceinline__ Barrier q_empty(int i) const {
    return barrier(steps + S::stages + i);
  }
  static constexpr int o_steps = steps + 2 * S::stages, tails = o_steps + 2 * S::o_stages;
  [[nodiscard]] __device__ __forceinline__ Barrier o_full(int i) const { return barrier(o_steps + i); }
  [[nodiscard]] __device__ __forceinline__ Barrier o_empty(int i) const {
    return barrier(o_steps + S::o_stages + i);
  }
  /// A last step of a segment has landed, and its rows behind the segment are yet to be zeroed.
  [[nodiscard]] __device__ __forceinline__ Barrier tail_landed(int i) const { return barrier(tails + i); }
  static constexpr int shares = tails + S::stages;
  /// A tile of dS is whole, and read by both warpgroups.
  [[nodiscard]] __device__ __forceinline__ Barrier scores_full(int i) const { return barrier(shares + i); }
  [[nodiscard]] __device__ __forceinline__ Barrier scores_empty(int i) const {
    return barrier(shares + shared_scores + i);
  }
  [[nodiscard]] __device__ __forceinline__ GradClaim& claim(int i) const {
    return reinterpret_cast<GradClaim*>(block_memory + claims)[i];
  }
  [[nodiscard]] __device__ __forceinline__ StepNote& note(int stage) const {
    return reinterpret_cast<StepNote*>(block_memory + notes)[stage];
  }
  /// A warp's own.
  [[nodiscard]] __device__ __forceinline__ QueryPlace& place(int warp) const {
    return reinterpret_cast<QueryPlace*>(block_memory + places)[warp];
  }
  [[nodiscard]] __device__ __forceinline__ StepInterval* interval(int stage) const {
    return reinterpret_cast<StepInterval*>(block_memory + intervals) + stage * S::key_rows;
  }
  /// Of each query row of a step: lse in log2 units, then delta times the scale.
  [[nodiscard]] __device__ __forceinline__ float* lse(int stage) const {
    return reinterpret_cast<float*>(block_memory + rows) + stage * 2 * S::step_rows;
  }

  __device__ __forceinline__ void init() const {
    if ((block_address(0) & 1023) != 0) __trap();  // as tensor copies and descriptors expect
    for (int i = 0; i < S::claim_slots; ++i)
      claim_full(i).init(1), claim_empty(i).init(S::consumer_warps + 3);
    keys_landed().init(1), keys_full().init(1), keys_empty().init(S::consumer_warps);
    for (int i = 0; i < S::stages; ++i)
      q_full(i).init(4), q_empty(i).init(S::consumer_warps), tail_landed(i).init(1);
    for (int i = 0; i < S::o_stages; ++i) o_full(i).init(2), o_empty(i).init(S::consumer_warps);
    for (int i = 0; i < shared_scores; ++i)
      scores_full(i).init(S::consumer_warps), scores_empty(i).init(S::consumer_warps);
    fence_barrier_init();
  }
};

}  // namespace usp::kernels::hopper
