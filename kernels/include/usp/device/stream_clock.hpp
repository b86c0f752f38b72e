// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/device/call_stream.hpp"

#include <deque>

namespace usp::device {

/// Times at which a stream reaches points of its work, by events that do not block the host.
class StreamClock {
 public:
  /// `stream` outlives this.
  explicit StreamClock(const CallStream& stream) : stream_(stream) {}
  /// Begins anew with mark 0.
  void restart();
  /// The point enqueued by now, as the next mark.
  void mark();
  /// Seconds from mark 0 to mark `index`; blocks until it is reached.
  [[nodiscard]] double at(std::size_t index) const { return seconds_between(marks_.front(), marks_[index]); }

 private:
  const CallStream& stream_;
  std::size_t used_ = 0;
  std::deque<Event> marks_;
};

/// A range that profilers show on this thread's line (NVTX), named while it lives; nothing without CUDA.
class NamedRange {
 public:
  explicit NamedRange(const char* name);
  ~NamedRange();
  NamedRange(const NamedRange&) = delete;
  NamedRange& operator=(const NamedRange&) = delete;
};

}  // namespace usp::device
