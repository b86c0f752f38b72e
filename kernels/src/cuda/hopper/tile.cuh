// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../tiles/element.cuh"
#include "params.hpp"
#include "ptx.cuh"
#include "wgmma.cuh"

/// Tiles in shared memory and tiles of scores, as forward and backward work on them.
namespace usp::kernels::hopper {

[[nodiscard]] __device__ __forceinline__ int lane_of_warp() {
  return static_cast<int>(threadIdx.x) & 31;
}

/// A number that all lanes of a warp hold; it is kept in a uniform register rather than computed anew.
[[nodiscard]] __device__ __forceinline__ int same_of_warp(int number) {
  return __shfl_sync(~0u, number, 0);
}

/// One arrival of a whole warp.
__device__ __forceinline__ void arrive_of_warp(Barrier barrier) {
  __syncwarp();
  if (lane_of_warp() == 0) barrier.arrive();
}

template <int count>
__device__ __forceinline__ void clear(float (&sums)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) sums[i] = 0;
}

/// Loads rows of one head; one thread.
template <int columns, int rows>
__device__ __forceinline__ void load_rows(std::uint32_t to, const CUtensorMap& map, BoxPlace at,
                                          Barrier full) {
#pragma unroll
  for (int tile = 0; tile < columns / tile_columns; ++tile) {
    at.column = tile * tile_columns;
    load_box(to + static_cast<std::uint32_t>(tile * rows * tile_row_bytes), map, at, full);
  }
}

/// Zeroes rows of `tiles` tiles of 64 columns, which may hold anything, also what times zero is not zero; one
/// warp. A fence of the asynchronous proxy is yet to come.
template <int tiles, int rows>
__device__ __forceinline__ void clear_rows(char* tile, int first, int end) {
  const int pieces = (end - first) * (tile_row_bytes / 16);
#pragma unroll 1
  for (int t = 0; t < tiles; ++t) {
    auto* const at = reinterpret_cast<uint4*>(tile + (t * rows + first) * tile_row_bytes);
#pragma unroll 1
    for (int i = lane_of_warp(); i < pieces; i += 32) at[i] = {0, 0, 0, 0};
  }
}

/// Four lanes hold two 16-bit columns each of four blocks of 8: returns the 16 bytes of the block of this
/// lane.
__device__ __forceinline__ uint4 whole_block(const std::uint32_t (&w)[4]) {
  const bool high = (threadIdx.x & 2) != 0, odd = (threadIdx.x & 1) != 0;
  // Lanes two apart share out the blocks in halves, then neighbours share those.
  const std::uint32_t even_2 = __shfl_xor_sync(~0u, high ? w[0] : w[2], 2);
  const std::uint32_t odd_2 = __shfl_xor_sync(~0u, high ? w[1] : w[3], 2);
  const std::uint32_t even = high ? w[2] : w[0], odd_word = high ? w[3] : w[1];
  const std::uint32_t from_1 = __shfl_xor_sync(~0u, odd ? even : odd_word, 1);
  const std::uint32_t from_3 = __shfl_xor_sync(~0u, odd ? even_2 : odd_2, 1);
  const std::uint32_t own = odd ? odd_word : even, from_2 = odd ? odd_2 : even_2;
  const uint2 near = odd ? make_uint2(from_1, own) : make_uint2(own, from_1);
  const uint2 far = odd ? make_uint2(from_3, from_2) : make_uint2(from_2, from_3);
  return high ? make_uint4(far.x, far.y, near.x, near.y) : make_uint4(near.x, near.y, far.x, far.y);
}
/// A row of 16-bit results, x[4 n + 2 h] and its neighbour of each block of 8 columns, whose 16-byte pieces
/// are aligned; by whole warps. Rows that are not `inside` are not written.
template <class T, int D, int h>
__device__ __forceinline__ void store_row(typename T::type* to, const float (&x)[D / 2], float factor,
                                          int width, bool inside) {
#pragma unroll
  for (int n = 0; n < D / 8; n += 4) {
    std::uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      words[i] = pack<T>(x[4 * (n + i) + 2 * h] * factor, x[4 * (n + i) + 2 * h + 1] * factor);
    const uint4 block = whole_block(words);
    const int column = 8 * (n + (static_cast<int>(threadIdx.x) & 3));
    if (inside && column < width) *reinterpret_cast<uint4*>(to + column) = block;
  }
}

/// Scores become tanh(score / softcap), to a few units of 2^-24; `factor`: CommonParams::softcap_factor.
template <int count>
__device__ __forceinline__ void cap_scores(float (&s)[count], float factor) {
#pragma unroll
  for (int i = 0; i < count; ++i) {
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(inverse) : "f"(1.f + exp2_fast(s[i] * factor)));
    s[i] = __fmaf_rn(-2.f, inverse, 1.f);
  }
}
/// The derivative of what cap_scores() makes.
[[nodiscard]] __device__ __forceinline__ float slope_of_cap(float capped) {
  return __fmaf_rn(-capped, capped, 1.f);
}
/// What hides a score of backward: its probability is zero, and with a softcap zero times the slope too.
template <bool softcap>
[[nodiscard]] __device__ __forceinline__ float hidden_score() {
  return softcap ? -1e12f : minus_infinity();
}

/// Adds up to two neighbouring floats to a row that no other thread of the launch writes.
__device__ __forceinline__ void add_pair(float* row, int column, int width, bool pairs, float2 x) {
  if (pairs && column + 1 < width) {
    add_global_pair(row + column, x);
    return;
  }
  if (column < width) row[column] += x.x;
  if (column + 1 < width) row[column + 1] += x.y;
}

/// What a row of a tile sees of the columns, counted from the tile's first.
struct Interval {
  int begin, end;
};

/// a / b, for a >= 0 and b > 0. Few registers: 64-bit division is a call.
__device__ __forceinline__ i64 quotient(i64 a, i64 b) {
  if (b == 1) return a;
  if (((a | b) >> 32) == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
  i64 result = 0;
#pragma unroll 1
  for (int bit = 62; bit >= 0; --bit)
    if ((a >> bit) >= b) a -= b << bit, result |= i64{1} << bit;
  return result;
}
/// Indices i of 0 to count - 1 with low <= i * step <= high, as rows of a view whose first is `first`.
__device__ __forceinline__ Interval rows_between(i64 low, i64 high, i64 step, int count, int first) {
  const i64 greatest = (count - 1) * step;
  if (high < 0 || low > greatest) return {0, 0};
  const i64 begin = low <= 0 ? 0 : quotient(low + step - 1, step);
  const i64 end = high >= greatest ? count : quotient(high, step) + 1;
  if (begin >= end) return {0, 0};
  return {first + static_cast<int>(begin), first + static_cast<int>(end)};
}
/// Key rows that a query row sees through a slice.
__device__ __forceinline__ Interval keys_of(const DeviceSlice& s, int row) {
  const int i = row - s.q_row;
  if (i < 0 || i >= s.q_count) return {0, 0};
  const i64 apart = s.q_pos - s.k_pos + i * s.q_step;
  return rows_between(apart - s.diff_max, apart - s.diff_min, s.k_step, s.k_count, s.k_row);
}
/// Query rows that see a key row through a slice.
__device__ __forceinline__ Interval queries_of(const DeviceSlice& s, int row) {
  const int j = row - s.k_row;
  if (j < 0 || j >= s.k_count) return {0, 0};
  const i64 apart = s.k_pos - s.q_pos + j * s.k_step;
  return rows_between(apart + s.diff_min, apart + s.diff_max, s.q_step, s.q_count, s.q_row);
}

/// The mask of a tile for the two rows of a thread.
struct TileMask {
  bool masked;
  Interval rows[2];
};

/// Of a thread's columns, 8 n and 8 n + 1 from its first on, how many come before a column.
[[nodiscard]] __device__ __forceinline__ int own_columns_before(int column) {
  return 2 * (column >> 3) + min(column & 7, 2);
}

template <int columns>
__device__ __forceinline__ void hide(float (&s)[columns / 2], const TileMask& mask,
                                     float hidden = minus_infinity()) {
  const int first = 2 * (lane_of_warp() & 3);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int begin = mask.rows[h].begin - first, end = mask.rows[h].end - first;
    if constexpr (columns >= 96) {
      // A bit of each column: many of them become predicates at once. With fewer it costs registers.
      const int before = own_columns_before(begin), own = own_columns_before(end);
#pragma unroll
      for (int word = 0; word < columns / 4; word += 32) {
        const std::uint32_t seen = low_bits(own - word) & ~low_bits(before - word);
#pragma unroll
        for (int i = word; i < min(word + 32, columns / 4); ++i)
          if ((seen >> (i - word) & 1) == 0) s[4 * (i >> 1) + 2 * h + (i & 1)] = hidden;
      }
    } else {
#pragma unroll
      for (int n = 0; n < columns / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (n * 8 + e < begin || n * 8 + e >= end) s[4 * n + 2 * h + e] = hidden;
    }
  }
}

}  // namespace usp::kernels::hopper
