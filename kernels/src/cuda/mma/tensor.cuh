// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../tiles/rows.cuh"
#include "mma.cuh"
#include "params.hpp"

/// Rows of views as the kernels read and write them.
namespace usp::kernels::mma {

/// The first element of a row of 16-bit inputs, as bytes.
__device__ __forceinline__ const char* half_row(const Strided& view, int batch, int head, i64 row) {
  return view.data + 2 * (batch * view.batch + head * view.head + row * view.row);
}

/// Adds neighbouring floats at a constant distance from an address, if at all, without a return value. One
/// transaction where the architecture has it; the distance is part of the instruction, which holds registers
/// long.
template <int distance>
__device__ __forceinline__ void add_pair(float* at, float2 x, bool really) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n@p red.global.add.v2.f32 [%0+%4], {%1, %2};\n}\n" ::"l"(at),
      "f"(x.x), "f"(x.y), "r"(static_cast<int>(really)), "n"(distance * 4)
      : "memory");
#else
  if (!really) return;
  atomicAdd(at + distance, x.x);
  atomicAdd(at + distance + 1, x.y);
#endif
}
#if __CUDA_ARCH__ >= 900
template <int distance>
__device__ __forceinline__ void add_four(float* at, float2 x, float2 y, bool really) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p red.global.add.v4.f32 [%0+%6], {%1, %2, %3, %4};\n}\n" ::
          "l"(at),
      "f"(x.x), "f"(x.y), "f"(y.x), "f"(y.y), "r"(static_cast<int>(really)), "n"(distance * 4)
      : "memory");
}
#endif

/// A warp's block of a result: MB blocks of 16 rows by NB blocks of 8 columns, from row and column on.
struct ResultPlace {
  int batch, head, row, row_end, column, width;
};

/// Writes or adds (not atomically) a block, times `factor`.
template <class T, int MB, int NB>
__device__ __forceinline__ void write_block(const float (&block)[MB][NB][4], const Strided& to,
                                            bool overwrite, float factor, const ResultPlace& place) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
  for (int m = 0; m < MB; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = place.row + m * 16 + h * 8 + (lane >> 2);
      if (row >= place.row_end) continue;
#pragma unroll
      for (int n = 0; n < NB; ++n) {
        const int column = place.column + n * 8 + 2 * (lane & 3);
        float2 x = {block[m][n][2 * h] * factor, block[m][n][2 * h + 1] * factor};
        if (to.type != DType::fp32) {
          store_rounded<T>(row_of<typename T::type>(to, place.batch, place.head, row), column, place.width,
                           to.pairs, x);
          continue;
        }
        float* out = row_of<float>(to, place.batch, place.head, row);
        if (!overwrite) {
          const float2 old = load_pair(out, column, place.width, to.pairs);
          x.x += old.x, x.y += old.y;
        }
        store_pair(out, column, place.width, to.pairs, x);
      }
    }
}

}  // namespace usp::kernels::mma
