// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../tile_ops.hpp"
#include "geometry.hpp"

namespace usp::cpu {
namespace {

void widen_bf16(const std::uint16_t* from, i64 count, float* to) {
  for (i64 i = 0; i < count; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(from[i]) << 16;
    __builtin_memcpy(to + i, &bits, sizeof bits);
  }
}

void widen_fp16(const std::uint16_t* from, i64 count, float* to) {
  for (i64 i = 0; i < count; ++i) {
    const std::uint32_t sign = (static_cast<std::uint32_t>(from[i]) & 0x8000U) << 16;
    const std::uint32_t rest = from[i] & 0x7fffU;
    // As a number scaled by 2^-112, which also makes subnormals right.
    const std::uint32_t scaled_bits = rest << 13;
    float scaled;
    __builtin_memcpy(&scaled, &scaled_bits, sizeof scaled);
    scaled *= 0x1p112F;
    std::uint32_t bits;
    __builtin_memcpy(&bits, &scaled, sizeof bits);
    bits = sign | (rest >= 0x7c00U ? 0x7f800000U | scaled_bits : bits);
    __builtin_memcpy(to + i, &bits, sizeof bits);
  }
}

template <class T>
void widen(const std::byte* from, DType type, i64 count, T* to) {
  if constexpr (std::is_same_v<T, float>) {
    if (type == DType::bf16) return widen_bf16(reinterpret_cast<const std::uint16_t*>(from), count, to);
    if (type == DType::fp16) return widen_fp16(reinterpret_cast<const std::uint16_t*>(from), count, to);
  }
  for (i64 i = 0; i < count; ++i) to[i] = reinterpret_cast<const T*>(from)[i];
}

/// to[w * to_stride + r] = factor * row r, element w, for N rows of which `count` exist and the others are
/// zero.
template <std::size_t N, class T>
USP_INLINE void pack_transposed(const T* rows, i64 stride, i64 count, i64 width, T factor, T* to,
                                i64 to_stride) {
  using V = typename VectorOf<T, N>::type;
  constexpr i64 n = static_cast<i64>(N);
  i64 w = 0;
  if (count >= n)
    for (; w + n <= width; w += n) {
      V block[N];
#pragma GCC unroll 16
      for (i64 r = 0; r < n; ++r) block[r] = load<V>(rows + r * stride + w) * factor;
      transpose<N>(block);
#pragma GCC unroll 16
      for (i64 r = 0; r < n; ++r) store(to + (w + r) * to_stride, block[r]);
    }
  for (; w < width; ++w)
    for (i64 r = 0; r < n; ++r) to[w * to_stride + r] = r < count ? rows[r * stride + w] * factor : T{0};
}

template <class T>
void pack_strips(const Rows<T>& rows, T* strips) {
  for (i64 r = 0; r < rows.count; r += strip_rows)
    pack_transposed<strip_rows>(rows.data + r * rows.stride, rows.stride, rows.count - r, rows.width, T{1},
                                strips + r * rows.width, strip_rows);
}

template <class T>
void pack_element_strips(const Rows<T>& rows, i64 strip_stride, T* strips) {
  const i64 whole = rows.width / strip_rows;
  for (i64 r = 0; r < rows.count; ++r) {
    const T* from = rows.data + r * rows.stride;
    T* to = strips + r * strip_rows;
    for (i64 s = 0; s < whole; ++s)
      __builtin_memcpy(to + s * strip_stride, from + s * strip_rows, strip_rows * sizeof(T));
    if (whole * strip_rows == rows.width) continue;
    for (i64 i = 0; i < strip_rows; ++i) {
      const i64 w = whole * strip_rows + i;
      to[whole * strip_stride + i] = w < rows.width ? from[w] : T{0};
    }
  }
}

template <class T>
void pack_panel(const Rows<T>& rows, T factor, int vectors, T* panel) {
  constexpr i64 lanes = lanes_of<T>;
  for (int v = 0; v < vectors; ++v)
    pack_transposed<lanes_of<T>>(rows.data + v * lanes * rows.stride, rows.stride, rows.count - v * lanes,
                                 rows.width, factor, panel + v * lanes, vectors * lanes);
}

template <class T>
void pack_columns(const Rows<T>& rows, i64 row_capacity, T* columns) {
  constexpr i64 lanes = lanes_of<T>;
  const i64 vectors = (rows.width + lanes - 1) / lanes;
  for (i64 first = 0; first < vectors;) {
    const i64 width = group_vectors(vectors - first) * lanes;
    T* to = columns + first * lanes * row_capacity;
    const i64 present = rows.width - first * lanes < width ? rows.width - first * lanes : width;
    for (i64 r = 0; r < row_capacity; ++r) {
      const T* from = rows.data + r * rows.stride + first * lanes;
      for (i64 w = 0; w < width; ++w) to[r * width + w] = r < rows.count && w < present ? from[w] : T{0};
    }
    first += width / lanes;
  }
}

template <class T>
void unpack_panel(const T* panel, i64 depth, int vectors, T* rows) {
  constexpr i64 lanes = lanes_of<T>;
  const i64 width = vectors * lanes;
  for (i64 column = 0; column < width; column += lanes) {
    i64 w = 0;
    for (; w + lanes <= depth; w += lanes) {
      Vec<T> block[lanes_of<T>];
#pragma GCC unroll 16
      for (i64 i = 0; i < lanes; ++i) block[i] = load<Vec<T>>(panel + (w + i) * width + column);
      transpose<lanes_of<T>>(block);
#pragma GCC unroll 16
      for (i64 i = 0; i < lanes; ++i) store(rows + (column + i) * depth + w, block[i]);
    }
    for (; w < depth; ++w)
      for (i64 i = 0; i < lanes; ++i) rows[(column + i) * depth + w] = panel[w * width + column + i];
  }
}

}  // namespace
}  // namespace usp::cpu
