// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/types.hpp"

#include <cstddef>
#include <type_traits>

namespace usp::kernels {

/// A strided tensor in memory: [batch][row][head][width], the elements of one row and head contiguous, the
/// other axes anywhere. Batch-first, sequence-first and head-first tensors are the same type with other
/// strides. Non-owning. `heads` are global head numbers: head h lies at (h - heads.begin) * head_stride.
template <class Byte>
struct BasicView {
  Byte* data = nullptr;
  DType type = DType::fp32;
  i64 batch = 0;
  i64 rows = 0;
  Range heads;
  i64 width = 0;
  i64 batch_stride = 0;  ///< strides in elements
  i64 row_stride = 0;
  i64 head_stride = 0;

  BasicView() = default;
  BasicView(Byte* memory, DType element, i64 batch_count, i64 row_count, Range head_range, i64 row_width)
      : data(memory),
        type(element),
        batch(batch_count),
        rows(row_count),
        heads(head_range),
        width(row_width),
        batch_stride(row_count * head_range.size() * row_width),
        row_stride(head_range.size() * row_width),
        head_stride(row_width) {}
  /// A view of mutable bytes reads as one of constant bytes.
  template <class Other, class = std::enable_if_t<std::is_same<const Other, Byte>::value>>
  BasicView(const BasicView<Other>& o)
      : data(o.data),
        type(o.type),
        batch(o.batch),
        rows(o.rows),
        heads(o.heads),
        width(o.width),
        batch_stride(o.batch_stride),
        row_stride(o.row_stride),
        head_stride(o.head_stride) {}

  /// First element of a row and (global) head.
  [[nodiscard]] Byte* at(i64 b, i64 row, i64 head) const {
    return data + (b * batch_stride + row * row_stride + (head - heads.begin) * head_stride) * bytes_of(type);
  }
  [[nodiscard]] i64 elements() const { return batch * rows * heads.size() * width; }
};

using View = BasicView<std::byte>;
using ConstView = BasicView<const std::byte>;

}  // namespace usp::kernels
