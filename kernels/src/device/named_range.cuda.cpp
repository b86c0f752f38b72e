// SPDX-License-Identifier: Apache-2.0
#include "usp/device/stream_clock.hpp"

#include <nvtx3/nvToolsExt.h>

namespace usp::device {

NamedRange::NamedRange(const char* name) {
  nvtxRangePushA(name);
}
NamedRange::~NamedRange() {
  nvtxRangePop();
}

}  // namespace usp::device
