// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/types.hpp"

#include <cstddef>
#include <new>

namespace usp::kernels::cpu {

/// One block of memory that a call cuts into arrays; it grows to the greatest call and stays.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  Scratch(Scratch&&) = delete;
  Scratch& operator=(Scratch&&) = delete;
  ~Scratch() { release(); }

  /// Calls `cut` with *this twice: to measure, then to hand out.
  template <class Cut>
  void divide(const Cut& cut) {
    measuring_ = true;
    used_ = 0;
    cut(*this);
    if (used_ > bytes_) {
      release();
      memory_ = static_cast<std::byte*>(::operator new(used_, alignment));
      bytes_ = used_;
    }
    measuring_ = false;
    used_ = 0;
    cut(*this);
  }
  /// Only within divide(). Aligned to cache lines, uninitialised.
  template <class T>
  void take(T*& at, i64 count) {
    if (!measuring_) at = reinterpret_cast<T*>(memory_ + used_);
    used_ += (static_cast<std::size_t>(count) * sizeof(T) + line - 1) / line * line;
  }

 private:
  static constexpr std::size_t line = 64;
  static constexpr std::align_val_t alignment{4096};

  void release() {
    if (memory_ != nullptr) ::operator delete(memory_, alignment);
    memory_ = nullptr;
    bytes_ = 0;
  }

  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0, used_ = 0;
  bool measuring_ = false;
};

}  // namespace usp::kernels::cpu
