// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backward_loads.cuh"
#include "key_grad_rows.cuh"

/// What the consumers of the backward kernels do with tiles of scores and of gradients.
namespace usp::kernels::hopper {

/// Of the 8 warps of two consumers, and the first of the two rows of 8 that a thread has in a tile of keys.
/// Both are computed anew: registers are scarce.
[[nodiscard]] __device__ __forceinline__ int warp_of_consumers() {
  return (thread_now() >> 5) - 4;
}
[[nodiscard]] __device__ __forceinline__ int row_of_consumers() {
  return 16 * warp_of_consumers() + (lane_of_warp() >> 2);
}

/// Where the first box of a warp for dQ lies; between claims dK and dV leave through it.
template <class S>
[[nodiscard]] __device__ __forceinline__ int box_of_warp(const BackwardShared<S>& shared) {
  return shared.dq + warp_of_consumers() * (S::dq_tiles * S::dq_bytes / S::consumer_warps);
}

/// What a thread's two key rows see of the queries of a stage.
template <class S>
[[nodiscard]] __device__ __forceinline__ TileMask mask_of_keys(const BackwardShared<S>& shared, int stage,
                                                               bool masked) {
  TileMask mask{masked, {}};
  if (masked) {
    mask.rows[0] = shared.interval(stage)[row_of_consumers()];
    mask.rows[1] = shared.interval(stage)[row_of_consumers() + 8];
  }
  return mask;
}

/// S^T or dP^T: a warpgroup's keys times `queries` rows of Q or dO, of `width` columns; enqueued.
template <class S, int width, int queries>
__device__ __forceinline__ void multiply_queries(float (&s)[queries / 2], const Operand& keys,
                                                 const Operand& rows) {
#pragma unroll
  for (int d = 0; d < width / 16; ++d)
    SharedProduct<typename S::T, queries, Major::k, Major::k>::add(
        s, keys.step<Major::k, S::key_rows>(d), rows.step<Major::k, S::step_rows>(d), d != 0);
}
/// dV or dK += P^T dO or dS^T Q, with P or dS in registers; enqueued.
template <class S, int columns>
__device__ __forceinline__ void multiply_rounded(float (&sum)[columns / 2],
                                                 const std::uint32_t (&scores)[S::step_rows / 4],
                                                 const Operand& rows) {
#pragma unroll
  for (int k = 0; k < S::step_rows / 16; ++k)
    RegisterProduct<typename S::T, columns, Major::mn>::add(sum, scores + 4 * k,
                                                            rows.step<Major::mn, S::step_rows>(k), true);
}

/// Scores of a thread by pairs of neighbouring query rows, which are columns of S^T and dP^T:
/// body(number of the pair, x, y, what `of` holds of their rows).
template <int rows, class Body>
__device__ __forceinline__ void each_pair(float (&s)[rows / 2], const float* of, const Body& body) {
  const auto* const fours = reinterpret_cast<const float4*>(of) + (lane_of_warp() & 3);
#pragma unroll
  for (int n = 0; n < rows / 8; n += 2) {
    const float4 of_rows = fours[2 * n];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      body(2 * n + h, s[4 * n + 2 * h], s[4 * n + 2 * h + 1], float2{of_rows.x, of_rows.y});
      body(2 * n + h + 2, s[4 * n + 2 * h + 4], s[4 * n + 2 * h + 5], float2{of_rows.z, of_rows.w});
    }
  }
}
/// S^T becomes P^T.
template <int rows>
__device__ __forceinline__ void probabilities(float (&s)[rows / 2], const float* lse, float scale_log2) {
  each_pair<rows>(s, lse, [&](int, float& x, float& y, float2 of) {
    x = exp2_fast(__fmaf_rn(x, scale_log2, -of.x));
    y = exp2_fast(__fmaf_rn(y, scale_log2, -of.y));
  });
}
/// dP^T becomes dS^T, times the scale.
template <int rows>
__device__ __forceinline__ void score_grads(float (&dp)[rows / 2], const float (&p)[rows / 2],
                                            const float* delta, float scale) {
  each_pair<rows>(dp, delta, [&](int pair, float& x, float& y, float2 of) {
    x = p[2 * pair] * __fmaf_rn(x, scale, -of.x);
    y = p[2 * pair + 1] * __fmaf_rn(y, scale, -of.y);
  });
}
template <class T, int rows>
__device__ __forceinline__ void round_scores(std::uint32_t (&to)[rows / 4], const float (&s)[rows / 2]) {
#pragma unroll
  for (int i = 0; i < rows / 4; ++i) to[i] = pack<T>(s[2 * i], s[2 * i + 1]);
}

/// dP^T becomes dS^T, times the scale. With a softcap, `s` is tanh(S^T / softcap) as yet, and becomes P^T.
template <bool softcap, int rows>
__device__ __forceinline__ void finish_scores(float (&dp)[rows / 2], float (&s)[rows / 2], const float* lse,
                                              const float* delta, const BackwardParams& p) {
  if constexpr (softcap) {
    float slopes[rows / 2];
#pragma unroll
    for (int i = 0; i < rows / 2; ++i) slopes[i] = slope_of_cap(s[i]);
    score_grads<rows>(dp, slopes, delta, p.scale);
    probabilities<rows>(s, lse, p.scale_log2);
#pragma unroll
    for (int i = 0; i < rows / 2; ++i) dp[i] *= s[i];
  } else {
    score_grads<rows>(dp, s, delta, p.scale);
  }
}

/// A warp's 16 keys of P^T or dS^T into tiles of `key_rows` rows, from a piece of 8 query rows on.
template <int rows, int key_rows>
__device__ __forceinline__ void store_scores(std::uint32_t tile, const std::uint32_t (&scores)[rows / 4],
                                             int first_key, int first_piece) {
  const int lane = lane_of_warp(), block = lane >> 3, row = first_key + (block & 1) * 8 + (lane & 7);
  const std::uint32_t at = tile + static_cast<std::uint32_t>(row * tile_row_bytes);
#pragma unroll
  for (int k = 0; k < rows / 16; ++k)
    store_fragment(
        at + static_cast<std::uint32_t>(k / 4 * key_rows * tile_row_bytes +
                                        (((first_piece + 2 * (k % 4) + (block >> 1)) ^ (lane & 7)) << 4)),
        scores + 4 * k);
}

/// A warp's 16 query rows of a tile of columns of dQ into boxes of 32 columns. Lanes of odd rows store two
/// blocks of 8 columns the other way round, so that no two lanes meet in a bank.
template <class S>
__device__ __forceinline__ void store_query_grads(std::uint32_t boxes, const float (&dq)[S::dq_columns / 2]) {
  const int lane = lane_of_warp(), g = lane >> 2, c = lane & 3;
  const bool odd = (g & 1) != 0;
#pragma unroll
  for (int n = 0; n < S::dq_columns / 8; n += (n & 1) != 0 ? 3 : 1)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int i = 4 * n + 2 * h, j = i + 8, piece = (2 * (n & 3) + (c >> 1)) ^ g ^ (odd ? 4 : 0);
      const std::uint32_t row =
          boxes +
          static_cast<std::uint32_t>((n >> 2) * S::box_bytes + (g + 8 * h) * tile_row_bytes + 8 * (c & 1));
      store_shared_pair(row + static_cast<std::uint32_t>(piece << 4), odd ? dq[j] : dq[i],
                        odd ? dq[j + 1] : dq[i + 1]);
      store_shared_pair(row + static_cast<std::uint32_t>((piece ^ 4) << 4), odd ? dq[i] : dq[j],
                        odd ? dq[i + 1] : dq[j + 1]);
    }
}

/// Adds a warp's rows of a warpgroup's columns of dQ of a step to global memory.
template <class S>
__device__ __forceinline__ void add_query_columns(const float (&dq)[S::dq_columns / 2],
                                                  const BackwardParams& p, const BackwardShared<S>& shared,
                                                  int batch, bool adds) {
  constexpr int boxes_of_warp = S::dq_columns / S::box_columns;
  const int warp = warp_of_consumers();
  const std::uint32_t boxes = block_address(shared.dq + warp * boxes_of_warp * S::box_bytes);
  if (lane_of_warp() == 0) added_boxes_wait_read();
  __syncwarp();
  store_query_grads<S>(boxes, dq);
  fence_async_proxy();
  __syncwarp();
  if (lane_of_warp() != 0 || !adds) return;
  const QueryPlace at = shared.place(warp);
#pragma unroll
  for (int box = 0; box < boxes_of_warp; ++box)
    add_box(p.dq,
            {(S::halves_rows ? 0 : (warp >> 2) * S::dq_columns) + box * S::box_columns,
             at.head - p.dq_head_begin, at.row + sum_rows * (S::halves_rows ? warp : warp & 3), batch},
            boxes + static_cast<std::uint32_t>(box * S::box_bytes));
  added_boxes_commit();
}

}  // namespace usp::kernels::hopper
