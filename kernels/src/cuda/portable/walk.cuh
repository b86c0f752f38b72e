// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mask.cuh"

/// Walks along the streamed tiles that a stationary tile meets.
namespace usp::portable {

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

/// Query tiles of a tile of gradient rows, for one query head after the other. Holds little: what is read
/// once a tile stays in memory.
template <int Keys, bool terms>
struct QueryWalk {
  int segment_begin, segment_end, head, head_end;
  int segment, q = 0, end = 0;

  __device__ __forceinline__ QueryWalk(const TileEntry& tile, int first_head, int last_head)
      : segment_begin(tile.segment_begin),
        segment_end(tile.segment_end),
        head(first_head),
        head_end(last_head),
        segment(tile.segment_begin - 1) {}

  template <class Params>
  __device__ __forceinline__ bool advance(const Params& p, int tile_row) {
    if (segment_begin == segment_end) return false;
    for (;;) {
      q += streamed_rows;
      if (q >= end) {
        if (++segment == segment_end) {
          if (++head >= head_end) return false;
          segment = segment_begin;
        }
        q = p.segments[segment].begin, end = p.segments[segment].end;
      }
      if constexpr (!terms) return true;
      const QuerySegment& s = p.segments[segment];
      if (p.terms.admitted == nullptr ||
          admits_any(p.terms, p.slices[s.slice], {q, tile_row + s.shift}, streamed_rows, Keys, head))
        return true;
    }
  }
  template <class Params>
  [[nodiscard]] __device__ __forceinline__ bool masked(const Params& p) const {
    const QuerySegment& s = p.segments[segment];
    return q < s.full_begin || min(q + streamed_rows, end) > s.full_end;
  }
};

}  // namespace usp::portable
