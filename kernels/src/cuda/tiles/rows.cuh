// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "element.cuh"
#include "strided.hpp"

/// Rows of views as the kernels read and write them.
namespace usp::kernels::tiles {

/// The first element of a row; `Element` is its type.
template <class Element>
__device__ __forceinline__ Element* row_of(const Strided& view, int batch, int head, int row) {
  return reinterpret_cast<Element*>(view.data) + batch * view.batch + head * view.head + row * view.row;
}
/// Up to two neighbouring floats; columns from `width` on read as zero.
__device__ __forceinline__ float2 load_pair(const float* row, int column, int width, bool pairs) {
  if (pairs && column + 1 < width) return *reinterpret_cast<const float2*>(row + column);
  return {column < width ? row[column] : 0.f, column + 1 < width ? row[column + 1] : 0.f};
}
__device__ __forceinline__ void store_pair(float* row, int column, int width, bool pairs, float2 x) {
  if (pairs && column + 1 < width) {
    *reinterpret_cast<float2*>(row + column) = x;
    return;
  }
  if (column < width) row[column] = x.x;
  if (column + 1 < width) row[column + 1] = x.y;
}
template <class T>
__device__ __forceinline__ void store_rounded(typename T::type* row, int column, int width, bool pairs,
                                              float2 x) {
  if (pairs && column + 1 < width) {
    *reinterpret_cast<std::uint32_t*>(row + column) = pack<T>(x.x, x.y);
    return;
  }
  if (column < width) row[column] = T::round(x.x);
  if (column + 1 < width) row[column + 1] = T::round(x.y);
}

}  // namespace usp::kernels::tiles
