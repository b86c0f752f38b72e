// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backward_loads.cuh"

/// What the consumers of the backward kernels do with tiles of scores and of gradients.
namespace usp::kernels::hopper {

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
  const int first = 2 * (lane_of_warp() & 3);
#pragma unroll
  for (int n = 0; n < rows / 8; ++n) {
    const float2 of_rows = *reinterpret_cast<const float2*>(of + 8 * n + first);
#pragma unroll
    for (int h = 0; h < 2; ++h) body(2 * n + h, s[4 * n + 2 * h], s[4 * n + 2 * h + 1], of_rows);
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
/// tanh(S^T / softcap) becomes P^T times the slope of the softcap, and P^T rounded.
template <class T, int rows>
__device__ __forceinline__ void capped_probabilities(std::uint32_t (&rounded)[rows / 4], float (&s)[rows / 2],
                                                     const float* lse, float scale_log2) {
  each_pair<rows>(s, lse, [&](int pair, float& x, float& y, float2 of) {
    const float of_x = exp2_fast(__fmaf_rn(x, scale_log2, -of.x)),
                of_y = exp2_fast(__fmaf_rn(y, scale_log2, -of.y));
    rounded[pair] = pack<T>(of_x, of_y);
    x = of_x * slope_of_cap(x), y = of_y * slope_of_cap(y);
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

/// A warp's 16 query rows of a tile of columns of dQ into boxes of 32 columns.
template <class S>
__device__ __forceinline__ void store_query_grads(std::uint32_t boxes, const float (&dq)[S::dq_columns / 2],
                                                  int first_row) {
  const int lane = lane_of_warp(), g = lane >> 2, c = lane & 3;
#pragma unroll
  for (int n = 0; n < S::dq_columns / 8; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row + g + 8 * h, piece = (2 * (n & 3) + (c >> 1)) ^ (g & 7);
      store_shared_pair(boxes + static_cast<std::uint32_t>((n >> 2) * S::box_bytes + row * tile_row_bytes +
                                                           (piece << 4) + 8 * (c & 1)),
                        dq[4 * n + 2 * h], dq[4 * n + 2 * h + 1]);
    }
}

/// Adds a warpgroup's tile of columns of dQ of a step to global memory.
template <class S>
__device__ __forceinline__ void add_query_columns(const float (&dq)[S::dq_columns / 2],
                                                  const BackwardParams& p, const BackwardShared<S>& shared,
                                                  int stage, int batch, int tile) {
  const int thread = thread_now(), half = (thread >> 7) - 1;
  const std::uint32_t boxes = block_address(shared.dq + half * S::dq_bytes);
  const bool leads = (thread & 127) == 0;
  if (leads) added_boxes_wait_read();
  named_barrier_wait(2 + half, 128);
  store_query_grads<S>(boxes, dq, 16 * ((thread >> 5) & 3));
  fence_async_proxy();
  named_barrier_wait(2 + half, 128);
  if (!leads) return;
  const StepNote note = shared.note(stage);
#pragma unroll
  for (int box = 0; box < S::dq_columns / S::box_columns; ++box)
    add_box(p.dq, {tile * S::dq_columns + box * S::box_columns, note.head - p.dq_head_begin, note.row, batch},
            boxes + static_cast<std::uint32_t>(box * S::box_bytes));
  added_boxes_commit();
}

/// Columns of a row from `first` on that a tile holds; the row has `width`.
struct Columns {
  int first, width;
};

/// Writes or adds one row of a thread's part of dK or dV; h is 0 or 1.
template <class T, int D, int h>
__device__ __forceinline__ void write_key_grads(const float (&x)[D / 2], const Strided& to, bool overwrite,
                                                const GradClaim& claim, int row, const Columns& columns) {
  const int first = columns.first + 2 * (lane_of_warp() & 3);
  if (to.type != DType::fp32) {
    auto* const halves = row_of<typename T::type>(to, claim.batch, claim.kv_head, row);
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
      store_rounded<T>(halves, n * 8 + first, columns.width, to.pairs,
                       {x[4 * n + 2 * h], x[4 * n + 2 * h + 1]});
    return;
  }
  float* const floats = row_of<float>(to, claim.batch, claim.kv_head, row);
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
    const float2 pair = {x[4 * n + 2 * h], x[4 * n + 2 * h + 1]};
    if (overwrite)
      store_pair(floats, n * 8 + first, columns.width, to.pairs, pair);
    else
      add_pair(floats, n * 8 + first, columns.width, to.pairs, pair);
  }
}
/// Of both rows.
template <class T, int D>
__device__ __forceinline__ void write_key_grads(const float (&x)[D / 2], const Strided& to,
                                                const BlockGrads& block, const GradClaim& claim, int row,
                                                const Columns& columns) {
  if (row < block.rows) write_key_grads<T, D, 0>(x, to, block.overwrite, claim, row, columns);
  if (row + 8 < block.rows) write_key_grads<T, D, 1>(x, to, block.overwrite, claim, row + 8, columns);
}

}  // namespace usp::kernels::hopper
