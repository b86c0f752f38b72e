// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace usp::comm {

/// Gives the core away for a moment. False when it came back late: others compete for it, and then a wait
/// that sleeps gets it back sooner, once it has to, than one that is always ready to run.
inline bool yield_briefly() {
  constexpr auto brief = std::chrono::microseconds(200);
  const auto before = std::chrono::steady_clock::now();
  std::this_thread::yield();
  return std::chrono::steady_clock::now() - before < brief;
}

/// Paces a polling wait: yields at first, since most answers come at once, then sleeps, so that ranks that
/// compute get the core. Knows when the time is up.
class Pause {
 public:
  explicit Pause(double limit_s)
      : deadline_(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                     std::chrono::duration<double>(std::min(limit_s, 1e9)))) {}
  [[nodiscard]] bool over() const { return Clock::now() >= deadline_; }
  void rest() {
    if (polls_ < yields) {
      polls_ = yield_briefly() ? polls_ + 1 : yields;
      return;
    }
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(sleep_ * 2, std::chrono::microseconds(500));
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int yields = 200;
  Clock::time_point deadline_;
  int polls_ = 0;
  std::chrono::microseconds sleep_{20};
};

}  // namespace usp::comm
