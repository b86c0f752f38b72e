// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../visible_keys.hpp"
#include "tile_ops.hpp"

#include "usp/kernels/view.hpp"
#include "usp/schedule/slice.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace usp::kernels::cpu {

[[nodiscard]] inline i64 ceil_to(i64 x, i64 unit) {
  return (x + unit - 1) / unit * unit;
}

/// False only if no pair of the sub-rectangle is visible.
[[nodiscard]] inline bool may_see(const schedule::Slice& s, Range queries, Range keys) {
  const auto ends = [](i64 pos, i64 step, Range r) {
    const i64 a = pos + r.begin * step, b = pos + (r.end - 1) * step;
    return Range{std::min(a, b), std::max(a, b)};
  };
  const Range x = ends(s.q_pos, s.q_step, queries), y = ends(s.k_pos, s.k_step, keys);
  return x.begin - y.end <= s.diff_max && x.end - y.begin >= s.diff_min;
}

/// Up to vectors * lanes adjacent query rows of one head, which fill the columns of a panel.
struct Panel {
  i64 head = 0;
  i64 first = 0;  ///< row of the slice
  i64 count = 0;
  int vectors = 0;
  const Range* rows = nullptr;  ///< per row: keys of the slice that it sees
  Range any;                    ///< keys that some row sees lie within
  Range all;                    ///< keys that all rows see
};

/// Finds what the rows of a panel see; `rows` holds `count` ranges.
inline void look(Panel& panel, const schedule::Slice& s, Range* rows) {
  panel.rows = rows;
  panel.any = {std::numeric_limits<i64>::max(), 0};
  panel.all = {0, s.k_count};
  for (i64 i = 0; i < panel.count; ++i) {
    const Range keys = rows[i] = visible_keys(s, panel.first + i);
    panel.all = {std::max(panel.all.begin, keys.begin), std::min(panel.all.end, keys.end)};
    if (keys.empty()) continue;
    panel.any = {std::min(panel.any.begin, keys.begin), std::max(panel.any.end, keys.end)};
  }
  if (panel.any.empty()) panel.any = {0, 0};
}

/// How few vectors hold so many rows.
template <class T>
[[nodiscard]] int vectors_for(const TileOps<T>& ops, i64 rows) {
  return static_cast<int>(std::min<i64>(ops.max_vectors, (rows + ops.lanes - 1) / ops.lanes));
}

/// Keys per tile: one panel of logits takes three quarters of a first-level cache of 32 KiB.
template <class T>
[[nodiscard]] i64 keys_per_tile(const TileOps<T>& ops) {
  const i64 keys = 24576 / (ops.max_vectors * ops.lanes * static_cast<i64>(sizeof(T)));
  return std::clamp<i64>(keys / ops.strip * ops.strip, 64, 256);
}

/// Elements from one strip of a tile's packed rows to the next: a line more than the tile, since strips a
/// power of two apart would share few cache sets.
template <class T>
[[nodiscard]] i64 element_stride(const TileOps<T>& ops, i64 keys) {
  return keys * ops.strip + 64 / static_cast<i64>(sizeof(T));
}

/// The product of the part's keys, packed as strips [key / strip][width][strip], with a panel of depth
/// `width`: into the part's tile, from strip border to strip border.
template <class T>
[[nodiscard]] StripProduct<T> product_of_keys(const TileOps<T>& ops, const PanelPart<T>& part,
                                              const T* strips, i64 width, const T* panel) {
  const i64 first = part.keys.begin / ops.strip * ops.strip;
  StripProduct<T> product;
  product.strips = strips + first * width;
  product.strip_stride = ops.strip * width;
  product.strip_count = ceil_to(part.keys.end - first, ops.strip) / ops.strip;
  product.depth = width;
  product.panel = panel;
  product.vectors = part.vectors;
  product.out = part.tile + first * part.vectors * ops.lanes;
  return product;
}

/// Rows of one head as elements T: in place where they are such, else widened into `staging`. Rows marked in
/// `dead` (null: none) read as zeros.
template <class T>
[[nodiscard]] Rows<T> rows_of(const TileOps<T>& ops, ConstView view, i64 batch, i64 head, Range range,
                              T* staging, const bool* dead = nullptr) {
  const bool same = bytes_of(view.type) == static_cast<i64>(sizeof(T));
  const bool alive = dead == nullptr || std::find(dead, dead + range.size(), true) == dead + range.size();
  if (same && alive)
    return {reinterpret_cast<const T*>(view.at(batch, range.begin, head)), view.row_stride, range.size(),
            view.width};
  for (i64 r = 0; r < range.size(); ++r) {
    T* to = staging + r * view.width;
    if (dead != nullptr && dead[r])
      std::fill(to, to + view.width, T{0});
    else
      ops.widen(view.at(batch, range.begin + r, head), view.type, view.width, to);
  }
  return {staging, view.width, range.size(), view.width};
}

/// Asks for rows that will soon be read: strided rows are beyond what hardware foresees.
inline void prefetch(ConstView view, i64 batch, i64 head, Range rows) {
  constexpr i64 line = 64;
  for (i64 r = rows.begin; r < rows.end; ++r) {
    const std::byte* row = view.at(batch, r, head);
    for (i64 at = 0; at < view.width * bytes_of(view.type); at += line) __builtin_prefetch(row + at);
  }
}

/// Part `index` of `parts` of a range.
[[nodiscard]] inline Range share(Range range, i64 index, i64 parts) {
  return {range.begin + range.size() * index / parts, range.begin + range.size() * (index + 1) / parts};
}

[[nodiscard]] inline double scalar(ConstView view, i64 batch, i64 row, i64 head) {
  const std::byte* at = view.at(batch, row, head);
  return view.type == DType::fp64 ? *reinterpret_cast<const double*>(at)
                                  : static_cast<double>(*reinterpret_cast<const float*>(at));
}

inline void set_scalar(View view, i64 batch, i64 row, i64 head, double x) {
  std::byte* at = view.at(batch, row, head);
  if (view.type == DType::fp64)
    *reinterpret_cast<double*>(at) = x;
  else
    *reinterpret_cast<float*>(at) = static_cast<float>(x);
}

/// Query heads that read a KV head.
[[nodiscard]] inline Range readers_of(i64 kv_head, Range query_heads, int group) {
  return {std::max(query_heads.begin, kv_head * group), std::min(query_heads.end, (kv_head + 1) * group)};
}

}  // namespace usp::kernels::cpu
