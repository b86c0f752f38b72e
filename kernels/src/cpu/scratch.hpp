// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/memory.hpp"

#include <cstddef>
#include <memory>

namespace usp::kernels::cpu {

/// One block of memory that a call cuts into arrays; it grows to the greatest call and stays.
class Scratch {
 public:
  explicit Scratch(Memory& memory) : arena_(memory.make_scratch()) {}

  /// Calls `cut` with *this twice: to measure, then to hand out.
  template <class Cut>
  void divide(const Cut& cut) {
    measuring_ = true;
    used_ = 0;
    cut(*this);
    arena_->reserve(used_);
    measuring_ = false;
    used_ = 0;
    cut(*this);
  }
  /// Only within divide(). Aligned to cache lines, uninitialised.
  template <class T>
  void take(T*& at, i64 count) {
    if (!measuring_) at = reinterpret_cast<T*>(arena_->data() + used_);
    used_ += (count * static_cast<i64>(sizeof(T)) + line - 1) / line * line;
  }

 private:
  static constexpr i64 line = 64;

  std::unique_ptr<Arena> arena_;
  i64 used_ = 0;
  bool measuring_ = false;
};

}  // namespace usp::kernels::cpu
