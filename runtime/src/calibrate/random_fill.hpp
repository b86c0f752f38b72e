// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/memory.hpp"

namespace usp::measure {

/// Values of a normal distribution in every element of a contiguous view, whose memory is written: how much
/// power a multiplication takes depends on them. Blocks.
void fill_random(kernels::Memory& memory, const kernels::ConstView& view);

/// Parts of one arena, each on a boundary of 256 bytes.
class Tensors {
 public:
  explicit Tensors(kernels::Memory& memory) : memory_(memory), arena_(memory.make_arena()) {}
  /// Before take(): room for so many parts of so many bytes in all, filled with zeros.
  void reserve(i64 bytes, i64 parts);
  [[nodiscard]] kernels::View take(DType type, i64 rows, i64 heads, i64 width);
  [[nodiscard]] kernels::View random(DType type, i64 rows, i64 heads, i64 width) {
    const kernels::View view = take(type, rows, heads, width);
    fill_random(memory_, view);
    return view;
  }

 private:
  kernels::Memory& memory_;
  std::unique_ptr<kernels::Arena> arena_;
  i64 used_ = 0;
};

}  // namespace usp::measure
