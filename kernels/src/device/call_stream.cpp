// SPDX-License-Identifier: Apache-2.0
#include "usp/device/call_stream.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

namespace usp::device {

void CallStream::begin_call(StreamRef stream) {
  const DeviceScope scope(device());  // whose default stream is meant
  // CUDA does not tell the device of a stream that captures.
  if (stream.handle != nullptr && stream.handle != current_ && !is_capturing(stream.handle) &&
      device_of(stream) != device())
    throw UsageError(
        fmt::format("the stream is of GPU {}, the rank's memory is on GPU {}; give a stream of that GPU",
                    device_of(stream), device()));
  current_ = stream.handle == nullptr ? own_.get() : stream.handle;
  if (ended_on_ == nullptr || ended_on_ == current_) return;
  if (is_capturing(current_)) return;
  wait_for(current_, call_end_.get());
}

void CallStream::synchronize() const {
  const DeviceScope scope(device());
  device::synchronize({current_});
}

void CallStream::wait_for_calls() const {
  if (ended_on_ != nullptr) call_end_.synchronize();
}

void CallStream::end_call() {
  const DeviceScope scope(device());
  if (is_capturing(current_)) return;
  call_end_.record(current_);
  ended_on_ = current_;
}

}  // namespace usp::device
