// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/view.hpp"
#include "usp/schedule/types.hpp"

#include <cstdint>

/// Views as the kernels read them.
namespace usp::kernels::tiles {

/// A view whose data pointer is moved so that heads are addressed by their global number. Strides in
/// elements.
struct Strided {
  char* data = nullptr;
  i64 batch = 0, row = 0, head = 0;
  DType type = DType::fp32;
  bool pairs = false;  ///< two neighbouring elements may be accessed as one
};

/// Whether every row starts on a boundary of `bytes`, `elements` of its type.
template <class V>
[[nodiscard]] bool divides(const V& view, std::uintptr_t bytes, i64 elements) {
  return reinterpret_cast<std::uintptr_t>(view.data) % bytes == 0 && view.batch_stride % elements == 0 &&
         view.row_stride % elements == 0 && view.head_stride % elements == 0;
}

template <class V>
[[nodiscard]] Strided strided(const V& view) {
  Strided s;
  s.type = view.type;
  s.batch = view.batch_stride, s.row = view.row_stride, s.head = view.head_stride;
  s.pairs = divides(view, static_cast<std::uintptr_t>(2 * bytes_of(view.type)), 2);
  // The heads of a view start anywhere, the kernels count them from 0.
  const auto at = reinterpret_cast<std::uintptr_t>(view.data) -
                  static_cast<std::uintptr_t>(view.heads.begin * view.head_stride * bytes_of(view.type));
  s.data = reinterpret_cast<char*>(at);
  return s;
}

}  // namespace usp::kernels::tiles
