// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "query_tiles.cuh"

/// Shared memory of the forward kernel: who waits for whom.
namespace usp::kernels::hopper {

template <class T_, int Dk_, int Dv_, int keys_, int q_buffers_, bool turns_, bool softcap_>
struct ForwardShape {
  using T = T_;
  static constexpr int Dk = Dk_, Dv = Dv_, keys = keys_, q_buffers = q_buffers_, stages = 2, claim_slots = 3;
  static constexpr bool turns = turns_, softcap = softcap_;
  static constexpr int consumers = 2, threads = 128 * (consumers + 1), consumer_warps = 4 * consumers;
  static constexpr int q_bytes = query_rows * Dk * 2, k_bytes = keys * Dk * 2, v_bytes = keys * Dv * 2;
};

/// Shared memory of a block.
template <class S>
struct ForwardShared {
  static constexpr int q = 0, k = q + S::q_buffers * S::q_bytes, v = k + S::stages * S::k_bytes,
                       intervals = v + S::stages * S::v_bytes,
                       claims = intervals + S::stages * query_rows * static_cast<int>(sizeof(Interval)),
                       masked = claims + S::claim_slots * static_cast<int>(sizeof(Claim)),
                       barriers = masked + 16;
  static constexpr int barrier_count = 2 * (S::claim_slots + S::q_buffers + 2 * S::stages) + S::stages;
  static constexpr int bytes = barriers + 8 * barrier_count;

  [[nodiscard]] __device__ __forceinline__ Barrier barrier(int index) const {
    return {block_address(barriers + 8 * index)};
  }
  [[nodiscard]] __device__ __forceinline__ Barrier claim_full(int i) const { return barrier(i); }
  [[nodiscard]] __device__ __forceinline__ Barrier claim_empty(int i) const {
    return barrier(S::claim_slots + i);
  }
  [[nodiscard]] __device__ __forceinline__ Barrier q_full(int i) const {
    return barrier(2 * S::claim_slots + i);
  }
  [[nodiscard]] __device__ __forceinline__ Barrier q_empty(int i) const {
    return barrier(2 * S::claim_slots + S::q_buffers + i);
  }
  static constexpr int rings = 2 * (S::claim_slots + S::q_buffers);
  [[nodiscard]] __device__ __forceinline__ Barrier k_full(int i) const { return barrier(rings + i); }
  [[nodiscard]] __device__ __forceinline__ Barrier k_empty(int i) const {
    return barrier(rings + S::stages + i);
  }
  [[nodiscard]] __device__ __forceinline__ Barrier v_full(int i) const {
    return barrier(rings + 2 * S::stages + i);
  }
  [[nodiscard]] __device__ __forceinline__ Barrier v_empty(int i) const {
    return barrier(rings + 3 * S::stages + i);
  }
  /// A last tile of values has landed, and its rows behind the segment are yet to be zeroed.
  [[nodiscard]] __device__ __forceinline__ Barrier v_landed(int i) const {
    return barrier(rings + 4 * S::stages + i);
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
    for (int i = 0; i < S::stages; ++i) {
      k_full(i).init(3), k_empty(i).init(S::consumer_warps);
      v_full(i).init(2), v_empty(i).init(S::consumer_warps), v_landed(i).init(1);
    }
    fence_barrier_init();
  }
};

}  // namespace usp::kernels::hopper
