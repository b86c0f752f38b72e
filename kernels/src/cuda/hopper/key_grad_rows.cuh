// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../tiles/rows.cuh"
#include "backward_shared.cuh"

/// Rows of dK and dV as the warps that computed them write them, or add them to what is there.
namespace usp::kernels::hopper {

/// Columns of a row from `first` on that a tile holds; the row has `width`.
struct Columns {
  int first, width;
};

/// Writes or adds one row of a thread's part of dK or dV in pairs; h is 0 or 1.
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
  if (row < claim.row_end) write_key_grads<T, D, 0>(x, to, block.overwrite, claim, row, columns);
  if (row + 8 < claim.row_end) write_key_grads<T, D, 1>(x, to, block.overwrite, claim, row + 8, columns);
}

/// A box of a warp in shared memory: 16 rows of 128 bytes, whose pieces of 16 bytes are permuted as by the
/// 128-byte swizzle. What leaves a warp through it leaves in long runs of each row.
inline constexpr int grad_box_bytes = 16 * tile_row_bytes;

/// 32 columns of a warp's rows, as floats.
__device__ __forceinline__ void store_float_box(std::uint32_t box, const float* x) {
  const int lane = lane_of_warp(), g = lane >> 2, c = lane & 3;
#pragma unroll
  for (int n = 0; n < 4; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      store_shared_pair(box + static_cast<std::uint32_t>((g + 8 * h) * tile_row_bytes +
                                                         (((2 * n + (c >> 1)) ^ g) << 4) + 8 * (c & 1)),
                        x[4 * n + 2 * h], x[4 * n + 2 * h + 1]);
}
/// 64 columns, rounded.
template <class T>
__device__ __forceinline__ void store_rounded_box(std::uint32_t box, const float* x) {
  const int lane = lane_of_warp(), row = lane & 15;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    std::uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = pack<T>(x[8 * n + 2 * i], x[8 * n + 2 * i + 1]);
    store_fragment(
        box + static_cast<std::uint32_t>(row * tile_row_bytes + (((2 * n + (lane >> 4)) ^ (lane & 7)) << 4)),
        words);
  }
}

/// A piece of a row of 16-byte pieces of a view that has none.
template <class Element>
__device__ __forceinline__ void write_elements(Element* row, int column, int width, bool adds,
                                               const uint4& piece) {
  constexpr int count = 16 / sizeof(Element);
  const auto* const values = reinterpret_cast<const Element*>(&piece);
#pragma unroll
  for (int i = 0; i < count; ++i) {
    if (column + i >= width) continue;
    if constexpr (std::is_same_v<Element, float>)
      row[column + i] = adds ? row[column + i] + values[i] : values[i];
    else
      row[column + i] = values[i];
  }
}

/// Writes a box's columns from `column` on, or adds them. `row`: the warp's first.
template <class Element>
__device__ __forceinline__ void write_box(int box, const Strided& to, const BlockGrads& block,
                                          const GradClaim& claim, int row, int column, int width) {
  constexpr int columns = 16 / sizeof(Element);
  const int piece = lane_of_warp() & 7;
  column += columns * piece;
  if (column >= width) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = 4 * i + (lane_of_warp() >> 3);
    if (row + r >= claim.row_end) continue;
    const auto x =
        *reinterpret_cast<const uint4*>(block_memory + box + r * tile_row_bytes + ((piece ^ (r & 7)) << 4));
    Element* const at = row_of<Element>(to, claim.batch, claim.kv_head, row + r);
    const bool adds = std::is_same_v<Element, float> && !block.overwrite;
    if (!block.pieces)
      write_elements(at, column, width, adds, x);
    else if (adds)
      add_global_piece(reinterpret_cast<float*>(at) + column, x);
    else
      *reinterpret_cast<uint4*>(at + column) = x;
  }
}

/// Writes or adds a warp's 16 rows of dK or dV, the first of which is `row`, through a box of its own.
template <class T, int D>
__device__ __forceinline__ void write_key_rows(const float (&x)[D / 2], const Strided& to,
                                               const BlockGrads& block, const GradClaim& claim, int row,
                                               int width, int box) {
  if (to.type == DType::fp32) {
#pragma unroll
    for (int column = 0; column < D; column += 32) {
      store_float_box(block_address(box), x + column / 2);
      __syncwarp();
      write_box<float>(box, to, block, claim, row, column, width);
      __syncwarp();
    }
    return;
  }
#pragma unroll
  for (int column = 0; column < D; column += 64) {
    store_rounded_box<T>(block_address(box), x + column / 2);
    __syncwarp();
    write_box<typename T::type>(box, to, block, claim, row, column, width);
    __syncwarp();
  }
}

}  // namespace usp::kernels::hopper
