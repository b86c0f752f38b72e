// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/numeric_types.hpp"
#include "usp/kernels/view.hpp"

#include <type_traits>

namespace usp::kernels {

/// Counts of a tensor [batch][row][head][width].
struct TensorShape {
  i64 batch = 1;
  i64 rows = 0;
  i64 heads = 0;
  i64 width = 0;
};

/// Strides of its outer axes, in elements; those of one row and head are contiguous.
struct TensorStrides {
  i64 batch = 0;
  i64 row = 0;
  i64 head = 0;
};

/// The DType of a C++ type: bf16, fp16, float, double.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<fp16> {
  static constexpr DType value = DType::fp16;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::fp32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::fp64;
};

/// The bytes of a view of T: mutable or constant as T.
template <class T>
using BytesOf = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;

/// A view of the caller's elements, contiguous and batch first, for inputs and results of forward and
/// backward. Local; reads nothing.
template <class T>
[[nodiscard]] BasicView<BytesOf<T>> view_of(T* data, const TensorShape& shape) {
  return {reinterpret_cast<BytesOf<T>*>(data),
          DTypeOf<std::remove_const_t<T>>::value,
          shape.batch,
          shape.rows,
          {0, shape.heads},
          shape.width};
}

/// The same of elements that lie by strides.
template <class T>
[[nodiscard]] BasicView<BytesOf<T>> view_of(T* data, const TensorShape& shape, const TensorStrides& strides) {
  auto view = view_of(data, shape);
  view.batch_stride = strides.batch;
  view.row_stride = strides.row;
  view.head_stride = strides.head;
  return view;
}

}  // namespace usp::kernels
