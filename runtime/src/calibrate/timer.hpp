// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "span_clock.hpp"

#include "usp/comm/communicator.hpp"
#include "usp/schedule/types.hpp"

#include <chrono>
#include <functional>
#include <utility>

namespace usp::measure {

/// How much is repeated, and how large it grows.
struct Pace {
  double sample_s = 5e-3;  ///< a sample repeats a call for at least so long
  int samples = 5;         ///< after one to warm up; the median counts
  int least_calls = 8;     ///< in a sample of short calls: ranks leave the barrier before it apart
  double longest_s = 0.4;  ///< sizes stop growing when a call takes so long
  i64 max_bytes = i64{64} << 20;
};

struct Sample {
  double seconds = 0;  ///< median over samples of the slowest rank
  double spread = 0;   ///< relative half width of the samples
};

/// Times calls that all ranks make at once. Collective in every call: what a rank decides follows from values
/// that all ranks have.
class Timer {
 public:
  /// @param clock of this rank's calls. Both outlive it.
  /// @param before_sample called on every rank before each sample; may throw
  Timer(comm::Communicator& control, SpanClock& clock, const Pace& pace,
        std::function<void()> before_sample = {})
      : control_(control),
        clock_(clock),
        pace_(pace),
        before_sample_(std::move(before_sample)),
        start_(Clock::now()) {}

  [[nodiscard]] Sample measure(const std::function<void()>& call);
  /// The greatest of what the ranks give.
  [[nodiscard]] double slowest(double mine);
  /// Seconds since this object was made, by rank 0's clock.
  [[nodiscard]] double elapsed_s();
  [[nodiscard]] const Pace& pace() const { return pace_; }
  /// The same on all ranks.
  void set_pace(const Pace& pace) { pace_ = pace; }

 private:
  using Clock = std::chrono::steady_clock;
  [[nodiscard]] double once(const std::function<void()>& call, int count);

  comm::Communicator& control_;
  SpanClock& clock_;
  Pace pace_;
  std::function<void()> before_sample_;
  Clock::time_point start_;
};

}  // namespace usp::measure
