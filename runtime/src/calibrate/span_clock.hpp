// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/memory.hpp"

#include <memory>

namespace usp::measure {

/// Times what one rank does between two points.
class SpanClock {
 public:
  SpanClock() = default;
  SpanClock(const SpanClock&) = delete;
  SpanClock& operator=(const SpanClock&) = delete;
  virtual ~SpanClock() = default;
  /// Blocks until all that was enqueued is done.
  virtual void settle() = 0;
  virtual void begin() = 0;
  /// Seconds since begin() until all that was enqueued since is done; blocks.
  [[nodiscard]] virtual double end() = 0;
};

/// By the clock of the GPU on the stream of `memory`, which outlives it; on the host by its own.
[[nodiscard]] std::unique_ptr<SpanClock> make_span_clock(kernels::Memory& memory);

}  // namespace usp::measure
