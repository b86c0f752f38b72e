// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../tiles/launch.cuh"
#include "params.hpp"
#include "ptx.cuh"

#include <cstddef>
#include <type_traits>

/// Blocks of threads that stay on their multiprocessor and claim one piece of work after the other.
namespace usp::kernels::hopper {

/// A tile of the table and a head (of all batches) that a block has claimed; row -1: no more work.
struct ClaimedTile {
  TileEntry tile;
  int head;
};
/// `mixes`: heavy and light tiles come by turns, but in the last section.
[[nodiscard]] __device__ __forceinline__ ClaimedTile claim_tile(const CommonParams& p, bool mixes) {
  int number = atomicAdd(p.next_claim, 1);
  if (number >= p.claim_count) return {{-1, 0, 0, 0, 0, 0}, 0};
  int tile_begin = 0, run = 0;
#pragma unroll 1
  while (number >= p.run_ends[run] * p.heads_of_all) tile_begin = p.run_ends[run++];
  number -= tile_begin * p.heads_of_all;
  const int per_section = (p.run_ends[run] - tile_begin) * p.section_heads, section = number / per_section;
  const int first = section * p.section_heads, size = min(p.section_heads, p.heads_of_all - first);
  const int rest = number - section * per_section;
  int tile = rest / size;
  // Many light tiles at one time wait for memory; but they end the launch.
  if (mixes && first + size < p.heads_of_all)
    tile = (tile & 1) != 0 ? p.run_ends[run] - tile_begin - 1 - tile / 2 : tile / 2;
  return {p.tiles[tile_begin + tile], first + rest % size};
}
/// Leaves no more work to any block; one thread.
__device__ __forceinline__ void give_up_claims(const CommonParams& p) {
  atomicMax(p.next_claim, p.claim_count);
}

/// Gives a claim to the warps of the block; one thread.
template <class Shared, class Slots, class Claim>
__device__ __forceinline__ void publish_claim(const Shared& shared, Slots& slots, const Claim& claim) {
  shared.claim_empty(slots.place).wait(slots.parity ^ 1);
  shared.claim(slots.place) = claim;
  shared.claim_full(slots.place).arrive();
  slots.advance();
}
/// Reads the next claim with all lanes of a warp.
template <class Shared, class Slots>
[[nodiscard]] __device__ __forceinline__ auto next_claim(const Shared& shared, Slots& slots) {
  shared.claim_full(slots.place).wait(slots.parity);
  const auto claim = shared.claim(slots.place);
  __syncwarp();
  if ((threadIdx.x & 31) == 0) shared.claim_empty(slots.place).arrive();
  slots.advance();
  return claim;
}

/// Turns of two warpgroups at the tensor cores; each takes as many as the other.
template <bool turns>
struct Turns {
  int consumer;
  __device__ __forceinline__ void begin() const {
    if (turns && consumer == 1) named_barrier_arrive(1, 256);
  }
  __device__ __forceinline__ void take() const {
    if (turns) named_barrier_wait(1 + consumer, 256);
  }
  __device__ __forceinline__ void pass() const {
    if (turns) named_barrier_arrive(2 - consumer, 256);
  }
};

/// Three warpgroups of a block: the first moves data, the others compute with the registers that it leaves.
template <class Shared, class Prepare, class Compute>
__device__ __forceinline__ void share_block(const Shared& shared, const Prepare& prepare,
                                            const Compute& compute) {
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  const int warpgroup = static_cast<int>(threadIdx.x) >> 7;
  if (warpgroup == 0) {
    shrink_registers<40>();
    prepare(static_cast<int>(threadIdx.x) >> 5);
  } else {
    grow_registers<232>();
    compute(warpgroup - 1);
  }
}

/// Calls launch(element type, whether there is a softcap), the types as values.
template <class Launch>
void launch_variant(const CommonParams& p, DType io, const Launch& launch) {
  const auto launch_type = [&](auto type) {
    if (p.softcap_factor != 0)
      launch(type, std::true_type{});
    else
      launch(type, std::false_type{});
  };
  if (io == DType::bf16)
    launch_type(Bf16{});
  else
    launch_type(Fp16{});
}

/// As many blocks as stay on the GPU at once.
template <auto kernel, int threads, int shared_bytes, class Params>
void launch_blocks(const Params& p, cudaStream_t stream, const char* what) {
  static_assert(shared_bytes <= 232448, "a block of sm_90 has 227 KB");
  static SharedMemoryLimit limit;
  limit.raise(kernel, p.device, shared_bytes);
  const int blocks = p.claim_count < p.multiprocessors ? p.claim_count : p.multiprocessors;
  kernel<<<static_cast<unsigned>(blocks), threads, static_cast<std::size_t>(shared_bytes), stream>>>(p);
  device::check_launch(what);
}

}  // namespace usp::kernels::hopper
