// SPDX-License-Identifier: Apache-2.0
#include "span_clock.hpp"

#include "usp/device/stream_clock.hpp"

#include <chrono>

namespace usp::measure {
namespace {

class HostClock final : public SpanClock {
 public:
  explicit HostClock(kernels::Memory& memory) : memory_(memory) {}
  void settle() override { memory_.synchronize(); }
  void begin() override { begin_ = Clock::now(); }
  double end() override {
    memory_.synchronize();
    return std::chrono::duration<double>(Clock::now() - begin_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  kernels::Memory& memory_;
  Clock::time_point begin_;
};

class DeviceClock final : public SpanClock {
 public:
  explicit DeviceClock(kernels::Memory& memory) : memory_(memory), marks_(*memory.call_stream()) {}
  void settle() override { memory_.synchronize(); }
  void begin() override { marks_.restart(); }
  double end() override {
    marks_.mark();
    return marks_.at(1);
  }

 private:
  kernels::Memory& memory_;
  device::StreamClock marks_;
};

}  // namespace

std::unique_ptr<SpanClock> make_span_clock(kernels::Memory& memory) {
  if (memory.call_stream() != nullptr) return std::make_unique<DeviceClock>(memory);
  return std::make_unique<HostClock>(memory);
}

}  // namespace usp::measure
