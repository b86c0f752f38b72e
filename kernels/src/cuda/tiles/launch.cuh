// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/device/check.cuda.hpp"

#include <array>
#include <cstddef>
#include <mutex>

namespace usp::kernels::tiles {

/// Permits a kernel more dynamic shared memory than a launch has by default: once per device, from any
/// thread. Each kernel has its own, with the same bytes at every call of a device.
class SharedMemoryLimit {
 public:
  template <class Kernel>
  void raise(Kernel* kernel, int device, int bytes) {
    const auto set = [&] {
      device::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                         "cudaFuncSetAttribute");
    };
    const auto at = static_cast<std::size_t>(device);
    if (at < raised_.size())
      std::call_once(raised_[at], set);
    else
      set();
  }

 private:
  std::array<std::once_flag, 64> raised_;  ///< by device; those beyond are set at every launch
};

}  // namespace usp::kernels::tiles
