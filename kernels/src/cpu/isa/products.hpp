// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../tile_ops.hpp"
#include "geometry.hpp"

namespace usp::kernels::cpu {
namespace {

/// The sums of one strip by N vectors of columns.
template <class T, int N>
struct Sums {
  Vec<T> at[USP_STRIP][static_cast<std::size_t>(N)];

  USP_INLINE void clear() {
#pragma GCC unroll 8
    for (i64 r = 0; r < strip_rows; ++r)  // NOLINT(modernize-loop-convert): unrolled by its count
#pragma GCC unroll 4
      for (int v = 0; v < N; ++v) at[r][v] = Vec<T>{};
  }
  USP_INLINE void load_from(const T* from, i64 stride) {
#pragma GCC unroll 8
    for (i64 r = 0; r < strip_rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < N; ++v)
        at[r][v] = load<Vec<T>>(from + r * stride + v * static_cast<i64>(lanes_of<T>));
  }
  USP_INLINE void store_to(T* to, i64 stride) const {
#pragma GCC unroll 8
    for (i64 r = 0; r < strip_rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < N; ++v) store(to + r * stride + v * static_cast<i64>(lanes_of<T>), at[r][v]);
  }
  /// Row r's factor lies at factors[r * stride].
  USP_INLINE void add_product(const T* factors, i64 stride, const T* columns) {
    Vec<T> c[static_cast<std::size_t>(N)];
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) c[v] = load<Vec<T>>(columns + v * static_cast<i64>(lanes_of<T>));
#pragma GCC unroll 8
    for (i64 r = 0; r < strip_rows; ++r) {
      const Vec<T> factor = all(factors[r * stride]);
#pragma GCC unroll 4
      for (int v = 0; v < N; ++v) at[r][v] += factor * c[v];
    }
  }
};

template <class T, int N>
void strip_product_of(const StripProduct<T>& p) {
  constexpr i64 width = N * static_cast<i64>(lanes_of<T>);
  // Strips stream from the second-level cache, a panel stays in the first.
  constexpr i64 ahead = 1024 / static_cast<i64>(sizeof(T));
  for (i64 s = 0; s < p.strip_count; ++s) {
    const T* strip = p.strips + s * p.strip_stride;
    const T* columns = p.panel;
    T* out = p.out + s * strip_rows * width;
    Sums<T, N> sums;
    if (p.add)
      sums.load_from(out, width);
    else
      sums.clear();
    i64 d = 0;
    for (; d + 4 <= p.depth; d += 4, strip += 4 * strip_rows, columns += 4 * width) {
      __builtin_prefetch(strip + ahead);
#pragma GCC unroll 4
      for (i64 i = 0; i < 4; ++i) sums.add_product(strip + i * strip_rows, 1, columns + i * width);
    }
    for (; d < p.depth; ++d, strip += strip_rows, columns += width) sums.add_product(strip, 1, columns);
    sums.store_to(out, width);
  }
}

template <class T>
void strip_product(const StripProduct<T>& product) {
  with_vectors(product.vectors, [&](auto n) { strip_product_of<T, n()>(product); });
}

/// Panels [first, end) of one key strip and one group of columns.
template <class T, int N>
USP_INLINE void outer_strip(const OuterProduct<T>& p, Range panels, i64 key, const T* columns, T* out) {
  constexpr i64 width = N * static_cast<i64>(lanes_of<T>);
  const i64 queries = p.vectors * static_cast<i64>(lanes_of<T>);
  Sums<T, N> sums;
  sums.load_from(out, p.out_stride);
  for (i64 panel = panels.begin; panel < panels.end; ++panel) {
    const T* factors = p.tile + panel * p.panel_stride + key * queries;
    const T* rows = columns + panel * queries * width;
    for (i64 q = 0; q < queries; ++q, rows += width) sums.add_product(factors + q, queries, rows);
  }
  sums.store_to(out, p.out_stride);
}

template <class T, int N>
void outer_columns(const OuterProduct<T>& p, const T* columns, T* out) {
  for (i64 key = 0; key < p.key_count; key += strip_rows)
    for (i64 panel = 0; panel < p.panels;) {
      const auto holds = [&](i64 n) { return p.keys[n].begin < key + strip_rows && p.keys[n].end > key; };
      Range run{panel, panel};
      while (run.end < p.panels && holds(run.end)) ++run.end;
      if (run.begin < run.end) outer_strip<T, N>(p, run, key, columns, out + key * p.out_stride);
      panel = run.end + 1;
    }
}

template <class T>
void outer_product(const OuterProduct<T>& p) {
  constexpr i64 lanes = lanes_of<T>;
  for (i64 first = 0, vectors = p.width / lanes; first < vectors;) {
    const i64 group = group_vectors(vectors - first);
    with_vectors(group, [&](auto n) {
      outer_columns<T, n()>(p, p.rows + first * lanes * p.row_capacity, p.out + first * lanes);
    });
    first += group;
  }
}

}  // namespace
}  // namespace usp::kernels::cpu
