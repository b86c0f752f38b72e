// SPDX-License-Identifier: Apache-2.0
#include "usp/device/stream_clock.hpp"

namespace usp::device {

void StreamClock::restart() {
  used_ = 0;
  mark();
}

void StreamClock::mark() {
  if (used_ == marks_.size()) marks_.emplace_back(stream_.device(), EventUse::timing);
  marks_[used_++].record(stream_.get());
}

}  // namespace usp::device
