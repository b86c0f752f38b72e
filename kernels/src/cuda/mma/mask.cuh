// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mma.cuh"
#include "params.hpp"

/// What a tile of scores goes through before and after the exponential.
namespace usp::kernels::mma {

__device__ __forceinline__ i64 divide_down(i64 a, i64 b) {
  if (b == 1) return a;
  return a >= 0 ? a / b : -((-a + b - 1) / b);
}

/// Key rows [lo, hi) that a query row sees through a slice.
struct KeyBounds {
  int lo, hi;
};
__device__ __forceinline__ KeyBounds key_bounds(const DeviceSlice& s, int row) {
  const int i = row - s.q_row;
  if (i < 0 || i >= s.q_count) return {0, 0};
  const i64 x = s.q_pos - s.k_pos + i * s.q_step;
  const i64 first = -divide_down(s.diff_max - x, s.k_step), last = divide_down(x - s.diff_min, s.k_step);
  const i64 lo = first > 0 ? first : 0, hi = last < s.k_count - 1 ? last + 1 : s.k_count;
  if (lo >= hi) return {0, 0};
  return {s.k_row + static_cast<int>(lo), s.k_row + static_cast<int>(hi)};
}

/// The part of a score tile that one thread holds: MB blocks of 16 rows by NB blocks of 8 keys.
template <int MB, int NB>
struct Scores {
  float at[MB][NB][4];
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int m = 0; m < MB; ++m)
#pragma unroll
      for (int n = 0; n < NB; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) at[m][n][e] = 0;
  }
};

/// Where a warp's part of a tile lies: its first query row and first key row.
struct TilePlace {
  int q_row, k_row;
};

/// Sets what the band of a slice hides to `hidden`.
template <int MB, int NB>
__device__ __forceinline__ void hide_band(Scores<MB, NB>& s, const DeviceSlice& slice, TilePlace place,
                                          float hidden) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const KeyBounds mine = key_bounds(slice, place.q_row + (MB == 2 ? lane : lane & 15));
#pragma unroll
  for (int m = 0; m < MB; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int from = m * 16 + h * 8 + (lane >> 2);
      const int first = place.k_row + 2 * (lane & 3);
      const int lo = __shfl_sync(~0u, mine.lo, from) - first, hi = __shfl_sync(~0u, mine.hi, from) - first;
#pragma unroll
      for (int n = 0; n < NB; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (n * 8 + e < lo || n * 8 + e >= hi) s.at[m][n][2 * h + e] = hidden;
    }
}

__device__ __forceinline__ i64 q_position(const DeviceSlice& s, int row) {
  return s.q_pos + (row - s.q_row) * s.q_step;
}
__device__ __forceinline__ i64 k_position(const DeviceSlice& s, int row) {
  return s.k_pos + (row - s.k_row) * s.k_step;
}

/// scale, softcap and ALiBi. With `slopes`, what the softcap's derivative is stays there.
template <int MB, int NB>
__device__ __forceinline__ void apply_logit_terms(Scores<MB, NB>& s, Scores<MB, NB>* slopes, const Terms& t,
                                                  const DeviceSlice& slice, TilePlace place, int head) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const float alibi = t.slopes != nullptr ? static_cast<float>(t.slopes[head]) : 0.f;
  const float two_over_cap = t.softcap != 0 ? 2 * log2_e / t.softcap : 0.f;
#pragma unroll
  for (int m = 0; m < MB; ++m)
#pragma unroll
    for (int n = 0; n < NB; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float x = s.at[m][n][e] * t.scale;
        if (t.softcap != 0) {
          const float tanh_x = 1.f - 2.f / (1.f + exp2_fast(x * two_over_cap));
          x = t.softcap * tanh_x;
          if (slopes != nullptr) slopes->at[m][n][e] = 1.f - tanh_x * tanh_x;
        } else if (slopes != nullptr) {
          slopes->at[m][n][e] = 1.f;
        }
        s.at[m][n][e] = x;
      }
  if (t.slopes == nullptr) return;
#pragma unroll
  for (int m = 0; m < MB; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const i64 apart = q_position(slice, place.q_row + m * 16 + h * 8 + (lane >> 2)) -
                        k_position(slice, place.k_row + 2 * (lane & 3));
#pragma unroll
      for (int n = 0; n < NB; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          s.at[m][n][2 * h + e] -= alibi * fabsf(static_cast<float>(apart - (n * 8 + e) * slice.k_step));
    }
}

__device__ __forceinline__ void philox(std::uint64_t seed, std::uint32_t (&c)[4]) {
  std::uint32_t k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint32_t a_high = __umulhi(0xD2511F53u, c[0]), a_low = 0xD2511F53u * c[0];
    const std::uint32_t b_high = __umulhi(0xCD9E8D57u, c[2]), b_low = 0xCD9E8D57u * c[2];
    c[0] = b_high ^ c[1] ^ k0;
    c[1] = b_low;
    c[2] = a_high ^ c[3] ^ k1;
    c[3] = a_low;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

/// Bit (m * NB + n) * 4 + e of a thread's elements.
using ElementBits = std::uint64_t;

/// Which of a thread's pairs dropout keeps. A loop that is not unrolled: the bits are the only result.
template <int MB, int NB>
__device__ ElementBits kept_pairs(const Terms& t, const DeviceSlice& slice, TilePlace place, int head,
                                  int batch) {
  static_assert(MB * NB * 4 <= 64, "a bit per element");
  const int lane = static_cast<int>(threadIdx.x) & 31;
  ElementBits bits = 0;
#pragma unroll 1
  for (int at = 0; at < MB * NB * 2; ++at) {
    const int h = at & 1, n = (at >> 1) % NB, m = (at >> 1) / NB;
    const i64 x = q_position(slice, place.q_row + m * 16 + h * 8 + (lane >> 2));
    const i64 y = k_position(slice, place.k_row + n * 8 + 2 * (lane & 3)), z = y + slice.k_step;
    std::uint32_t c[4] = {static_cast<std::uint32_t>(x), static_cast<std::uint32_t>(y >> 2),
                          static_cast<std::uint32_t>(head), static_cast<std::uint32_t>(batch)};
    philox(t.seed, c);
    const auto word = [&](i64 k) {
      const std::uint32_t low = (k & 1) != 0 ? c[1] : c[0], high = (k & 1) != 0 ? c[3] : c[2];
      return (k & 2) != 0 ? high : low;
    };
    const ElementBits first = word(y) >= t.threshold ? 1 : 0;
    if ((y >> 2) != (z >> 2)) {
      c[0] = static_cast<std::uint32_t>(x), c[1] = static_cast<std::uint32_t>(z >> 2);
      c[2] = static_cast<std::uint32_t>(head), c[3] = static_cast<std::uint32_t>(batch);
      philox(t.seed, c);
    }
    const ElementBits second = word(z) >= t.threshold ? 2 : 0;
    bits |= (first | second) << ((m * NB + n) * 4 + 2 * h);
  }
  return bits;
}

/// Which of a thread's pairs the block pattern admits; pairs outside the slice count as refused.
template <int MB, int NB>
__device__ ElementBits admitted_pairs(const Terms& t, const DeviceSlice& slice, TilePlace place, int head) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const std::uint8_t* admitted = t.admitted + head * t.block_rows * t.block_columns;
  ElementBits bits = 0;
#pragma unroll 1
  for (int at = 0; at < MB * NB * 4; ++at) {
    const int e = at & 1, h = (at >> 1) & 1, n = (at >> 2) % NB, m = (at >> 2) / NB;
    const int row = place.q_row + m * 16 + h * 8 + (lane >> 2),
              key = place.k_row + n * 8 + 2 * (lane & 3) + e;
    const int i = row - slice.q_row, j = key - slice.k_row;
    if (i < 0 || i >= slice.q_count || j < 0 || j >= slice.k_count) continue;
    const i64 x = q_position(slice, row) / t.block_q, y = k_position(slice, key) / t.block_k;
    if (admitted[x * t.block_columns + y] != 0) bits |= ElementBits{1} << ((m * NB + n) * 4 + 2 * h + e);
  }
  return bits;
}

/// Sets the elements whose bit is not set to `hidden`.
template <int MB, int NB>
__device__ __forceinline__ void hide_unset(Scores<MB, NB>& s, ElementBits bits, float hidden) {
#pragma unroll
  for (int m = 0; m < MB; ++m)
#pragma unroll
    for (int n = 0; n < NB; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (((bits >> ((m * NB + n) * 4 + e)) & 1) == 0) s.at[m][n][e] = hidden;
}
template <int MB, int NB>
__device__ __forceinline__ void scale_all(Scores<MB, NB>& s, float factor) {
#pragma unroll
  for (int m = 0; m < MB; ++m)
#pragma unroll
    for (int n = 0; n < NB; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) s.at[m][n][e] *= factor;
}

/// Whether the block pattern admits any pair of `q_count` x `k_count` rows of a slice: the same answer in all
/// lanes of a warp.
__device__ __forceinline__ bool admits_any(const Terms& t, const DeviceSlice& s, TilePlace place, int q_count,
                                           int k_count, int head) {
  const int q0 = max(place.q_row, s.q_row), q1 = min(place.q_row + q_count, s.q_row + s.q_count) - 1;
  const int k0 = max(place.k_row, s.k_row), k1 = min(place.k_row + k_count, s.k_row + s.k_count) - 1;
  if (q0 > q1 || k0 > k1) return false;
  const i64 x0 = q_position(s, q0) / t.block_q, x1 = q_position(s, q1) / t.block_q;
  const i64 y0 = k_position(s, k0) / t.block_k, columns = k_position(s, k1) / t.block_k - y0 + 1;
  const std::uint8_t* admitted = t.admitted + head * t.block_rows * t.block_columns;
  const i64 count = (x1 - x0 + 1) * columns;
  bool any = false;
  for (i64 i = static_cast<int>(threadIdx.x) & 31; i < count && !any; i += 32)
    any = admitted[(x0 + i / columns) * t.block_columns + y0 + i % columns] != 0;
  return __any_sync(~0u, any) != 0;
}

}  // namespace usp::kernels::mma
