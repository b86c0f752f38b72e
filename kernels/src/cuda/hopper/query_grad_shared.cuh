// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "query_tiles.cuh"

/// Shared memory of the kernel of dQ alone: who waits for whom.
namespace usp::kernels::hopper {

/// Tiles of `keys` keys, `stages` of them; of Q and dO, the second of `q_buffers` holds those of the claim
/// that follows.
template <class T_, int Dk_, int Dv_, int keys_, int stages_, int q_buffers_, bool softcap_>
struct QueryGradShape {
  using T = T_;
  static constexpr int Dk = Dk_, Dv = Dv_, keys = keys_, stages = stages_, q_buffers = q_buffers_,
                       claim_slots = 3;
  static constexpr bool softcap = softcap_;
  static constexpr bool turns = Dk <= 192;  ///< with 256 the products leave little to run beside
  static constexpr int consumers = 2, threads = 128 * (consumers + 1), consumer_warps = 4 * consumers;
  static constexpr int q_bytes = query_rows * Dk * 2, o_bytes = query_rows * Dv * 2;
  static constexpr int k_bytes = keys * Dk * 2, v_bytes = keys * Dv * 2;
};

/// Shared memory of a block.
template <class S>
struct QueryGradShared {
  static constexpr int q = 0, d_o = q + S::q_buffers * S::q_bytes, k = d_o + S::q_buffers * S::o_bytes,
                       v = k + S::stages * S::k_bytes, intervals = v + S::stages * S::v_bytes,
                       claims = intervals + S::stages * query_rows * static_cast<int>(sizeof(Interval)),
                       masked = claims + S::claim_slots * static_cast<int>(sizeof(Claim)),
                       barriers = masked + 16;
  static constexpr int barrier_count = 2 * (S::claim_slots + S::q_buffers) + 3 * S::stages + 3 * S::stages;
  static constexpr int bytes = barriers + 8 * barrier_count;
  static_assert(S::stages <= 4, "there is a word for each");

  [[nodiscard]] __device__ __forceinline__ Barrier barrier(int index) const {
    return {block_address(barriers + 8 * index)};
  }
  [[nodiscard]] __device__ __forceinline__ Barrier claim_full(int i) const { return barrier(i); }
  [[nodiscard]] __device__ __forceinline__ Barrier claim_empty(int i) const {
    return barrier(S::claim_slots + i);
  }
  static constexpr int rows = 2 * S::claim_slots, keys = rows + 2 * S::q_buffers,
                       values = keys + 3 * S::stages;
  /// Of Q and dO.
  [[nodiscard]] __device__ __forceinline__ Barrier q_full(int i) const { return barrier(rows + i); }
  [[nodiscard]] __device__ __forceinline__ Barrier q_empty(int i) const {
    return barrier(rows + S::q_buffers + i);
  }
  [[nodiscard]] __device__ __forceinline__ Barrier k_full(int i) const { return barrier(keys + i); }
  [[nodiscard]] __device__ __forceinline__ Barrier k_empty(int i) const {
    return barrier(keys + S::stages + i);
  }
  [[nodiscard]] __device__ __forceinline__ Barrier v_full(int i) const { return barrier(values + i); }
  [[nodiscard]] __device__ __forceinline__ Barrier v_empty(int i) const {
    return barrier(values + S::stages + i);
  }
  /// A last tile of a segment has landed, and its rows behind the segment are yet to be zeroed.
  [[nodiscard]] __device__ __forceinline__ Barrier k_landed(int i) const {
    return barrier(keys + 2 * S::stages + i);
  }
  [[nodiscard]] __device__ __forceinline__ Barrier v_landed(int i) const {
    return barrier(values + 2 * S::stages + i);
  }
  [[nodiscard]] __device__ __forceinline__ Claim& claim(int i) const {
    return reinterpret_cast<Claim*>(block_memory + claims)[i];
  }
  [[nodiscard]] __device__ __forceinline__ Interval* interval(int stage) const {
    return reinterpret_cast<Interval*>(block_memory + intervals) + stage * query_rows;
  }
  [[nodiscard]] __device__ __forceinline__ int& is_masked(int stage) const {
    return reinterpret_cast<int*>(block_memory + masked)[stage];
  }

  __device__ __forceinline__ void init() const {
    if ((block_address(0) & 1023) != 0) __trap();  // as tensor copies and descriptors expect
    for (int i = 0; i < S::claim_slots; ++i)
      claim_full(i).init(1), claim_empty(i).init(S::consumer_warps + 4);
    for (int i = 0; i < S::q_buffers; ++i) q_full(i).init(1), q_empty(i).init(S::consumer_warps);
    for (int i = 0; i < S::stages; ++i)
      k_full(i).init(4), k_empty(i).init(S::consumer_warps), k_landed(i).init(1);
    for (int i = 0; i < S::stages; ++i)
      v_full(i).init(2), v_empty(i).init(S::consumer_warps), v_landed(i).init(1);
    fence_barrier_init();
  }
};

}  // namespace usp::kernels::hopper
