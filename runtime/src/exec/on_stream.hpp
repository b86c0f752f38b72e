// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "require.hpp"

#include "usp/base/error.hpp"
#include "usp/device/call_stream.hpp"
#include "usp/kernels/memory.hpp"

namespace usp {

/// A call's stream, from its checks to the end of what it enqueues.
class OnStream {
 public:
  OnStream(kernels::Memory& memory, device::StreamRef stream) : stream_(memory.call_stream()) {
    require(stream_ != nullptr || stream.handle == nullptr,
            "a stream was given, but the kernel's memory is the host's; leave it out");
    if (stream_ != nullptr) stream_->begin_call(stream);
  }
  ~OnStream() {
    try {
      if (stream_ != nullptr) stream_->end_call();
    } catch (const EnvironmentError&) {
      // The error of the call itself, which left the stream so, is under way.
    }
  }
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  device::CallStream* stream_;
};

}  // namespace usp
