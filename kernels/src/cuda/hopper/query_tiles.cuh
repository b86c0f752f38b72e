// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "claims.cuh"
#include "tile.cuh"

/// What the kernels that keep a tile of queries, by which keys stream, have in common: claims and masks.
namespace usp::kernels::hopper {

/// A claim as the block's warps read it; row -1: no more work.
struct Claim {
  int row, row_end, head, batch, tiles, segment_begin, segment_end, kv_head;
};

[[nodiscard]] __device__ __forceinline__ Claim make_claim(const QueryTileParams& p) {
  const ClaimedTile claimed = claim_tile(p, true);
  Claim claim{claimed.tile.row, claimed.tile.row_end};
  claim.tiles = claimed.tile.streamed_tiles;
  claim.segment_begin = claimed.tile.segment_begin, claim.segment_end = claimed.tile.segment_end;
  claim.batch = claimed.head / p.heads;
  claim.head = p.head_begin + ((claimed.head % p.heads) << p.bundle_log2);
  claim.kv_head = claim.head / p.group - p.kv_begin;
  return claim;
}

/// Claims what follows the claims before `place`; one warp. Of the warps that move data it is the one that
/// clears tails, which has registers left.
template <class Shared, class Slots>
__device__ __forceinline__ void claim_next(const QueryTileParams& p, const Shared& shared, Slots place) {
  if (lane_of_warp() == 0) publish_claim(shared, place, make_claim(p));
}

/// A row of a claim's tile.
struct QueryRow {
  int token, head;
};
[[nodiscard]] __device__ __forceinline__ QueryRow query_row(const QueryTileParams& p, const Claim& claim,
                                                            int row_of_tile) {
  const int token = row_of_tile >> p.bundle_log2;
  return {claim.row + token, claim.head + row_of_tile - (token << p.bundle_log2)};
}

/// The first of the two query rows of a thread that computes; read anew, since registers are scarce.
[[nodiscard]] __device__ __forceinline__ int row_of_tile() {
  return 16 * ((thread_now() >> 5) - 4) + (lane_of_warp() >> 2);
}

/// Tiles of keys that a claim meets, for the warps that move data.
template <int keys, class Body>
__device__ __forceinline__ void each_key_tile(const QueryTileParams& p, const Claim& claim,
                                              const Body& body) {
  for (int i = claim.segment_begin; i < claim.segment_end; ++i) {
    const KeySegment segment = p.segments[i];
    for (int key = segment.begin; key < segment.end; key += keys) body(segment, key);
  }
}

/// Says of every tile of keys whether it is masked, and then which keys each query row sees; a warp for each
/// warpgroup that computes.
template <class S, class Shared>
__device__ __forceinline__ void prepare_key_masks(const QueryTileParams& p, const Shared& shared,
                                                  int consumer) {
  constexpr int rows = query_rows / S::consumers;
  static_assert(rows == 64, "a lane has two");
  const int first = consumer * rows + lane_of_warp();
  Ring<S::claim_slots> claims;
  Ring<S::stages> kv;
  for (;;) {
    const Claim claim = next_claim(shared, claims);
    if (claim.row < 0) return;
    each_key_tile<S::keys>(p, claim, [&](const KeySegment& segment, int key) {
      const bool masked = key < segment.full_begin || key + S::keys > segment.full_end;
      // Divisions take long, and come before the wait.
      Interval seen[2];
      if (masked) {
        const DeviceSlice& slice = p.slices[segment.slice];
#pragma unroll 1
        for (int row = first + 32; row >= first; row -= 32) {
          seen[1] = seen[0];
          seen[0] = keys_of(slice, claim.row + (row >> p.bundle_log2));
        }
      }
      shared.k_empty(kv.place).wait(kv.parity ^ 1);
      if (masked) {
#pragma unroll
        for (int n = 0; n < 2; ++n)
          shared.interval(kv.place)[first + 32 * n] = {seen[n].begin - key, seen[n].end - key};
      }
      if (first == 0) shared.is_masked(kv.place) = masked ? 1 : 0;
      __syncwarp();
      if (lane_of_warp() == 0) shared.k_full(kv.place).arrive();
      kv.advance();
    });
  }
}

template <class Shared>
__device__ __forceinline__ TileMask read_mask(const Shared& shared, int stage, int row_of_tile) {
  TileMask mask{shared.is_masked(stage) != 0, {}};
  if (mask.masked) {
    mask.rows[0] = shared.interval(stage)[row_of_tile];
    mask.rows[1] = shared.interval(stage)[row_of_tile + 8];
  }
  return mask;
}

/// Where a warpgroup stands in the rings of buffers.
template <class S>
struct Places {
  Ring<S::claim_slots> claims;
  Ring<S::q_buffers> q;
  Ring<S::stages> k, v;
};

/// Tiles of keys of the claim that follows, once its queries are there; 0: none follows at once.
template <class S, class Shared>
[[nodiscard]] __device__ __forceinline__ int tiles_of_next(const Shared& shared, const Places<S>& at) {
  if (S::q_buffers == 1) return 0;  // its queries wait for this claim's last product
  const Ring<S::claim_slots> next = next_of(at.claims);
  shared.claim_full(next.place).wait(next.parity);
  const int tiles = shared.claim(next.place).tiles;
  if (tiles > 0) shared.q_full(at.q.place).wait(at.q.parity);
  return tiles;
}

}  // namespace usp::kernels::hopper
