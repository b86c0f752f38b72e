// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace usp::comm {

/// Yields the core. False when it came back late: other threads compete for it, and then a wait that sleeps
/// is scheduled sooner when its message arrives than one that is always ready to run.
inline bool yield_briefly() {
  constexpr auto brief = std::chrono::microseconds(200);
  const auto before = std::chrono::steady_clock::now();
  std::this_thread::yield();
  return std::chrono::steady_clock::now() - before < brief;
}

/// Paces a polling wait: yields at first, since most messages complete at once, then sleeps with growing
/// intervals, so that ranks that compute get the core.
class Backoff {
 public:
  void rest() {
    if (polls_ < yields) {
      polls_ = yield_briefly() ? polls_ + 1 : yields;
      return;
    }
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(sleep_ * 2, std::chrono::microseconds(500));
  }

 private:
  static constexpr int yields = 200;
  int polls_ = 0;
  std::chrono::microseconds sleep_{20};
};

}  // namespace usp::comm
