// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../tile_ops.hpp"
#include "geometry.hpp"

namespace usp::kernels::cpu {
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
  for (i64 r = 0; r < rows.count; r += strip_rows) {
    pack_transposed<strip_rows>(rows.data + r * rows.stride, rows.stride, rows.count - r, rows.width, T{1},
                                strips + r * rows.width, strip_rows);
  }
}

template <class T>
void pack_element_strips(const Rows<T>& rows, i64 strip_stride, T* strips) {
  using V = typename VectorOf<T, USP_STRIP>::type;
  const i64 whole = rows.width / strip_rows;
  i64 r = 0;
  // Four rows at once fill whole cache lines of every strip.
  for (; r + 4 <= rows.count; r += 4) {
    for (i64 s = 0; s < whole; ++s)
#pragma GCC unroll 4
      for (i64 i = r; i < r + 4; ++i)
        store(strips + s * strip_stride + i * strip_rows,
              load<V>(rows.data + i * rows.stride + s * strip_rows));
  }
  for (; r < rows.count; ++r)
    for (i64 s = 0; s < whole; ++s)
      store(strips + s * strip_stride + r * strip_rows,
            load<V>(rows.data + r * rows.stride + s * strip_rows));
  if (whole * strip_rows == rows.width) return;
  for (r = 0; r < rows.count; ++r)
    for (i64 i = 0; i < strip_rows; ++i) {
      const i64 w = whole * strip_rows + i;
      strips[whole * strip_stride + r * strip_rows + i] =
          w < rows.width ? rows.data[r * rows.stride + w] : T{0};
    }
}

template <class T>
void pack_panel(const Rows<T>& rows, T factor, int vectors, T* panel) {
  constexpr i64 lanes = lanes_of<T>;
  for (int v = 0; v < vectors; ++v)
    pack_transposed<lanes_of<T>>(rows.data + v * lanes * rows.stride, rows.stride, rows.count - v * lanes,
                                 rows.width, factor, panel + v * lanes, vectors * lanes);
}

/// One group of N vectors of columns.
template <int N, class T>
void pack_group(const Rows<T>& rows, i64 first, i64 row_capacity, T* to) {
  constexpr i64 lanes = lanes_of<T>, width = N * lanes;
  const i64 present = rows.width - first < width ? rows.width - first : width;
  for (i64 r = 0; r < rows.count; ++r, to += width) {
    const T* from = rows.data + r * rows.stride + first;
    if (present == width) {
#pragma GCC unroll 4
      for (int v = 0; v < N; ++v) store(to + v * lanes, load<Vec<T>>(from + v * lanes));
    } else {
      for (i64 w = 0; w < width; ++w) to[w] = w < present ? from[w] : T{0};
    }
  }
  for (i64 i = 0; i < (row_capacity - rows.count) * width; ++i) to[i] = T{0};
}

template <class T>
void pack_columns(const Rows<T>& rows, i64 row_capacity, T* columns) {
  constexpr i64 lanes = lanes_of<T>;
  const i64 vectors = (rows.width + lanes - 1) / lanes;
  for (i64 first = 0; first < vectors;) {
    const i64 group = group_vectors(vectors - first);
    with_vectors(group, [&](auto n) {
      pack_group<n()>(rows, first * lanes, row_capacity, columns + first * lanes * row_capacity);
    });
    first += group;
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
}  // namespace usp::kernels::cpu
