// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "claims.cuh"
#include "tile.cuh"

/// What the kernels that keep a tile of queries, by which keys stream, have in common: claims and masks.
namespace usp::kernels::hopper {

/// A claim as the block's warps read it; row -1: no more work.
struct Claim {
  int row, head, batch, tiles, segment_begin, segment_end, unused[2];
};

[[nodiscard]] __device__ __forceinline__ Claim make_claim(const QueryTileParams& p) {
  const ClaimedTile claimed = claim_tile(p);
  Claim claim{claimed.tile.row};
  claim.tiles = claimed.tile.streamed_tiles;
  claim.segment_begin = claimed.tile.segment_begin, claim.segment_end = claimed.tile.segment_end;
  claim.batch = claimed.head / p.heads;
  claim.head = p.head_begin + ((claimed.head % p.heads) << p.bundle_log2);
  return claim;
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

/// Says of every tile of keys whether it is masked, and then which keys each query row sees; one warp.
template <class S, class Shared>
__device__ __forceinline__ void prepare_key_masks(const QueryTileParams& p, const Shared& shared) {
  const int lane = lane_of_warp();
  Ring<S::claim_slots> claims;
  Ring<S::stages> kv;
  for (;;) {
    const Claim claim = next_claim(shared, claims);
    if (claim.row < 0) return;
    each_key_tile<S::keys>(p, claim, [&](const KeySegment& segment, int key) {
      const bool masked = key < segment.full_begin || key + S::keys > segment.full_end;
      shared.k_empty(kv.place).wait(kv.parity ^ 1);
      if (masked) {
        const DeviceSlice& slice = p.slices[segment.slice];
#pragma unroll 1
        for (int row = lane; row < query_rows; row += 32) {
          const Interval seen = keys_of(slice, claim.row + (row >> p.bundle_log2));
          shared.interval(kv.place)[row] = {seen.begin - key, seen.end - key};
        }
      }
      if (lane == 0) shared.is_masked(kv.place) = masked ? 1 : 0;
      __syncwarp();
      if (lane == 0) shared.k_full(kv.place).arrive();
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

}  // namespace usp::kernels::hopper
