// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deadline.hpp"

#include "usp/comm/communicator.hpp"

#include <algorithm>
#include <chrono>

namespace usp::comm {

enum class WaitState : std::uint8_t { goes_on, late, interrupted };

/// Watches one wait for other ranks: its time, and whether the caller interrupts it. `options` outlive it.
class WaitWatch {
 public:
  explicit WaitWatch(const CommOptions& options) : options_(options), deadline_(options.watchdog_s) {}
  /// Something has moved: the time begins anew.
  void restart() { deadline_ = Deadline(options_.watchdog_s); }
  /// Calls CommOptions::interrupted where that is due.
  [[nodiscard]] WaitState look() {
    if (options_.interrupted && Deadline::Clock::now() >= next_question_) {
      next_question_ = Deadline::Clock::now() + question_interval;
      if (options_.interrupted()) return WaitState::interrupted;
    }
    return deadline_.over() ? WaitState::late : WaitState::goes_on;
  }
  /// When look() may find something else than now, for a wait that sleeps.
  [[nodiscard]] Deadline::Clock::time_point next_look() const {
    return options_.interrupted ? std::min(deadline_.end(), next_question_) : deadline_.end();
  }

 private:
  static constexpr auto question_interval = std::chrono::milliseconds(100);

  const CommOptions& options_;
  Deadline deadline_;
  Deadline::Clock::time_point next_question_ = Deadline::Clock::now() + question_interval;
};

}  // namespace usp::comm
