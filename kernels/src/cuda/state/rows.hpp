// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../layout/fast_div.hpp"

#include "usp/base/error.hpp"
#include "usp/kernels/view.hpp"

#include <algorithm>
#include <limits>

/// Kernels over rows: a group of lanes takes one (batch, row, head) at a time.
namespace usp::cuda {

constexpr int row_threads = 256;
constexpr int rows_per_group = 4;  ///< in flight at once

/// Where the rows of a view lie, in elements from `data`, which is that of the first row and head.
template <class T>
struct RowsOf {
  T* data = nullptr;
  i64 batch_stride = 0, row_stride = 0, head_stride = 0;

  template <class Byte>
  static RowsOf of(const BasicView<Byte>& v, i64 first_row, Range heads) {
    return {reinterpret_cast<T*>(v.at(0, first_row, heads.begin)), v.batch_stride, v.row_stride,
            v.head_stride};
  }
  [[nodiscard]] USP_HOST_DEVICE T* at(i64 b, i64 row, i64 head) const {
    return data + b * batch_stride + row * row_stride + head * head_stride;
  }
  /// Each row starts on a boundary of `count` elements.
  [[nodiscard]] bool aligned(int count) const {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    return address % (static_cast<std::size_t>(count) * sizeof(T)) == 0 && batch_stride % count == 0 &&
           row_stride % count == 0 && head_stride % count == 0;
  }
};

/// How the rows of a launch are dealt to groups of lanes.
struct Deal {
  FastDiv heads, rows;  // heads vary fastest, then rows, then batches
  std::uint32_t count = 0;
  int width = 0;
  int lanes = 1;  // of a group: a power of two, 32 at most

  Deal(i64 batch, i64 row_count, i64 head_count, i64 row_width, int pack)
      : heads(static_cast<std::uint32_t>(head_count)),
        rows(static_cast<std::uint32_t>(row_count)),
        count(static_cast<std::uint32_t>(batch * row_count * head_count)),
        width(static_cast<int>(row_width)) {
    expects(batch * row_count * head_count <= std::numeric_limits<std::int32_t>::max(),
            "more than 2^31 rows of heads in one call");
    while (lanes < 32 && lanes * pack < width) lanes *= 2;
  }
  [[nodiscard]] unsigned blocks() const {
    const i64 per_block = i64{row_threads} / lanes * rows_per_group;
    return static_cast<unsigned>((count + per_block - 1) / per_block);
  }

#if defined(__CUDACC__)
  struct Row {
    std::uint32_t batch, row, head;
  };
  /// The u-th row of this thread's group.
  [[nodiscard]] __device__ std::uint32_t number(int u) const {
    const std::uint32_t groups = row_threads / static_cast<std::uint32_t>(lanes);
    return (blockIdx.x * rows_per_group + static_cast<std::uint32_t>(u)) * groups +
           threadIdx.x / static_cast<std::uint32_t>(lanes);
  }
  [[nodiscard]] __device__ int lane() const {
    return static_cast<int>(threadIdx.x) & (lanes - 1);
  }
  [[nodiscard]] __device__ Row row(std::uint32_t n) const {
    const std::uint32_t head = heads.split(n), r = rows.split(n);
    return {n, r, head};
  }
#endif
};

}  // namespace usp::cuda
