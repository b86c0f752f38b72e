// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mask.cuh"

/// Walks along the streamed tiles that a stationary tile meets.
namespace usp::kernels::mma {

/// Key tiles of a tile of query rows.
template <int Rows, bool terms>
struct KeyWalk {
  int segment, last;
  int k = 0, end = 0, slice = 0, full_begin = 0, full_end = 0;

  __device__ __forceinline__ explicit KeyWalk(const TileEntry& tile)
      : segment(tile.segment_begin - 1), last(tile.segment_end - 1) {}

  /// To the next tile that holds a visible pair; false after the last.
  template <class Params>
  __device__ __forceinline__ bool advance(const Params& p, int q_row, int head) {
    for (;;) {
      k += streamed_rows;
      if (k >= end) {
        if (segment == last) return false;
        const KeySegment& s = p.segments[++segment];
        k = s.begin, end = s.end, slice = s.slice, full_begin = s.full_begin, full_end = s.full_end;
      }
      if constexpr (!terms) return true;
      if (p.terms.admitted == nullptr ||
          admits_any(p.terms, p.slices[slice], {q_row, k}, Rows, streamed_rows, head))
        return true;
    }
  }
  [[nodiscard]] __device__ __forceinline__ bool masked() const {
    return k < full_begin || k + streamed_rows > full_end;
  }
};

/// Query tiles of a tile of gradient rows, for one query head after the other. Holds only what changes from
/// one query tile to the next: registers are scarce here, and loads of every iteration would be waited for.
template <int Keys, bool terms>
struct QueryWalk {
  int head, segment, q = 0, end = 0;
  bool masked = false;

  __device__ __forceinline__ explicit QueryWalk(const BackwardParams& p)
      : head(max(p.head_begin, kv_head(p) * p.group)), segment(p.tiles[blockIdx.x].segment_begin - 1) {}

  static __device__ __forceinline__ int kv_head(const BackwardParams& p) {
    return p.head_begin / p.group + static_cast<int>(blockIdx.y);
  }

  __device__ __forceinline__ bool advance(const BackwardParams& p) {
    for (;;) {
      q += streamed_rows;
      if (q >= end && !next_segment(p)) return false;
      if constexpr (!terms) return true;
      const QuerySegment& s = p.segments[segment];
      if (p.terms.admitted == nullptr ||
          admits_any(p.terms, p.slices[s.slice], {q, p.tiles[blockIdx.x].row + s.shift}, streamed_rows, Keys,
                     head))
        return true;
    }
  }

 private:
  __device__ __forceinline__ bool next_segment(const BackwardParams& p) {
    const TileEntry& tile = p.tiles[blockIdx.x];
    if (tile.segment_begin == tile.segment_end) return false;
    if (++segment == tile.segment_end) {
      if (++head >= min(p.head_end, (kv_head(p) + 1) * p.group)) return false;
      segment = tile.segment_begin;
    }
    const QuerySegment& s = p.segments[segment];
    q = s.begin, end = s.end, masked = s.masked != 0;
    return true;
  }
};

}  // namespace usp::kernels::mma
