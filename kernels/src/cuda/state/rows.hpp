// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../layout/fast_div.hpp"

#include "usp/base/error.hpp"
#include "usp/kernels/view.hpp"
#include "usp/schedule/limits.hpp"

#include <algorithm>

/// Kernels over rows: a group of lanes takes one (batch, row, head) at a time.
namespace usp::kernels::cuda {

constexpr int row_threads = 256;
constexpr int rows_per_group = 4;  ///< in flight at once

/// How the rows of a launch are dealt to groups of lanes.
struct Deal {
  FastDiv heads, rows;  // heads vary fastest, then rows, then batches
  i64 head_count, row_count, batch;
  std::uint32_t count = 0;
  int width = 0;
  int lanes = rows_per_group;  // of a group: a power of two, 32 at most

  Deal(i64 batches, i64 rows_of_batch, i64 heads_of_row, i64 row_width, int pack)
      : heads(static_cast<std::uint32_t>(heads_of_row)),
        rows(static_cast<std::uint32_t>(rows_of_batch)),
        head_count(heads_of_row),
        row_count(rows_of_batch),
        batch(batches),
        count(static_cast<std::uint32_t>(batches * rows_of_batch * heads_of_row)),
        width(static_cast<int>(row_width)) {
    expects(batches * rows_of_batch * heads_of_row <= max_gpu_rows,
            "check_gpu_rows comes before a launch over so many rows");
    while (lanes < 32 && lanes * pack < width) lanes *= 2;
  }
  [[nodiscard]] unsigned blocks() const {
    const i64 per_block = i64{row_threads} / lanes * rows_per_group;
    return static_cast<unsigned>((count + per_block - 1) / per_block);
  }

#if defined(__CUDACC__)
  /// The u-th row of this thread's group; the last blocks have numbers past the end.
  [[nodiscard]] __device__ std::uint32_t number(int u) const {
    const std::uint32_t groups = row_threads / static_cast<std::uint32_t>(lanes);
    return (blockIdx.x * rows_per_group + static_cast<std::uint32_t>(u)) * groups +
           threadIdx.x / static_cast<std::uint32_t>(lanes);
  }
  /// A row that exists in any case: what is loaded for a number past the end is not used.
  [[nodiscard]] __device__ std::uint32_t existing(std::uint32_t n) const {
    return n < count ? n : count - 1;
  }
  [[nodiscard]] __device__ int lane() const {
    return static_cast<int>(threadIdx.x) & (lanes - 1);
  }
  [[nodiscard]] __device__ std::uint32_t head(std::uint32_t n) const {
    return heads.split(n);
  }
#endif
};

/// Where the rows of a view lie, in elements from `data`, which is that of the first row and head.
template <class T>
struct RowsOf {
  T* data = nullptr;
  i64 batch_stride = 0, row_stride = 0, head_stride = 0;
  i64 step = 0;
  bool linear = false;  ///< row n of the deal lies at n * step: the usual case, and cheap

  template <class Byte>
  static RowsOf of(const BasicView<Byte>& v, i64 first_row, Range heads) {
    return {reinterpret_cast<T*>(v.at(0, first_row, heads.begin)), v.batch_stride, v.row_stride,
            v.head_stride};
  }
  /// Each row starts on a boundary of `count` elements.
  [[nodiscard]] bool aligned(int count) const {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    return address % (static_cast<std::size_t>(count) * sizeof(T)) == 0 && batch_stride % count == 0 &&
           row_stride % count == 0 && head_stride % count == 0;
  }
  [[nodiscard]] RowsOf dealt(const Deal& deal) const {
    RowsOf r = *this;
    const i64 h = deal.head_count, n = deal.row_count;
    r.step = h > 1 ? head_stride : n > 1 ? row_stride : batch_stride;
    r.linear = (n == 1 || row_stride == r.step * h) && (deal.batch == 1 || batch_stride == r.step * h * n);
    return r;
  }
#if defined(__CUDACC__)
  [[nodiscard]] __device__ T* at(i64 b, i64 row, i64 head) const {
    return data + b * batch_stride + row * row_stride + head * head_stride;
  }
  [[nodiscard]] __device__ T* row(const Deal& deal, std::uint32_t n) const {
    if (linear) return data + n * step;
    const std::uint32_t head = deal.heads.split(n), r = deal.rows.split(n);
    return at(n, r, head);
  }
#endif
};

}  // namespace usp::kernels::cuda
