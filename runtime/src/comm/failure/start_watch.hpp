// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deadline.hpp"
#include "faults.hpp"

#include "usp/comm/communicator.hpp"
#include "usp/comm/errors.hpp"

namespace usp::comm {

/// The time in which ranks meet, and whether the caller interrupts it. `options` outlive it.
class StartWatch {
 public:
  explicit StartWatch(double limit_s) : deadline_(limit_s) {}
  StartWatch(double limit_s, const CommOptions& options, int rank)
      : deadline_(limit_s), options_(&options), rank_(rank) {}
  [[nodiscard]] bool over() const { return deadline_.over(); }
  /// As Deadline's.
  [[nodiscard]] int left_ms(int max_ms) const { return deadline_.left_ms(max_ms); }
  /// Asks CommOptions::interrupted; called between sleeps of at most max_sleep_ms. Throws CommunicationError
  /// where the caller interrupts.
  void look() const {
    if (options_ == nullptr || !options_->interrupted || !options_->interrupted()) return;
    throw CommunicationError(interrupted_fault({.tick = -1, .operation = "start"}, rank_));
  }

  static constexpr int max_sleep_ms = 100;

 private:
  Deadline deadline_;
  const CommOptions* options_ = nullptr;  ///< null: not interruptible
  int rank_ = -1;
};

}  // namespace usp::comm
