// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/view.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace usp {

/// Where the tensors of one call lie on this rank. What is written must have a place of its own for each
/// element, apart from everything else that the call reads or writes. Counts, strides and addresses decide:
/// no element is looked at.
class CallMemory {
 public:
  /// Each throws UsageError where the memory cannot be that of a tensor: negative strides, ends beyond the
  /// address space, no whole element at its begin; where it is written, elements that share a place too.
  void reads(const kernels::ConstView& view, const char* name);
  void writes(const kernels::ConstView& view, const char* name);
  /// A list beside the tensors; null is no memory.
  void reads(const void* data, i64 count, i64 element_bytes, const char* name);
  void writes(const void* data, i64 count, i64 element_bytes, const char* name);
  /// Throws UsageError, naming both, where something written may share bytes with something else. Tensors
  /// that interleave (q, k and v of one packed tensor) are distinguished.
  void check_apart() const;

 private:
  struct Axis {
    i64 count = 1;
    i64 stride_bytes = 0;
  };
  struct Block {
    const char* name = "";
    bool written = false;
    std::uintptr_t begin = 0, end = 0;
    i64 row_bytes = 0;  ///< contiguous ones
    std::array<Axis, 3> axes;
  };

  void add(const kernels::ConstView& view, const char* name, bool written);
  void add(const void* data, i64 count, i64 element_bytes, const char* name, bool written);
  void push(const Block& block);
  /// Of a block whose axes are in ascending order of their strides.
  static void check_own_places(const Block& block, const kernels::ConstView& view);
  [[nodiscard]] static bool apart(const Block& a, const Block& b);
  [[nodiscard]] static bool apart_modulo(const Block& a, const Block& b, i64 outer_from);

  std::array<Block, 13> blocks_;  ///< no allocation in a call
  std::size_t count_ = 0;
};

}  // namespace usp
