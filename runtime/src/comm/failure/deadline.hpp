// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/types.hpp"

#include <algorithm>
#include <chrono>

namespace usp::comm {

/// Longest limit of a wait; a greater one could overflow the clock.
constexpr double max_limit_s = 1e9;

/// The time at which a wait for other ranks ends.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Deadline(double limit_s)
      : end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                std::chrono::duration<double>(std::min(limit_s, max_limit_s)))) {}
  [[nodiscard]] bool over() const { return Clock::now() >= end_; }
  [[nodiscard]] Clock::time_point end() const { return end_; }
  /// For poll(): what is left, at most `max_ms`, at least 1.
  [[nodiscard]] int left_ms(int max_ms) const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end_ - Clock::now()).count();
    return static_cast<int>(std::clamp<i64>(left, 1, max_ms));
  }

 private:
  Clock::time_point end_;
};

}  // namespace usp::comm
