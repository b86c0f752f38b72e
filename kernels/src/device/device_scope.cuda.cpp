// SPDX-License-Identifier: Apache-2.0
#include "usp/device/device.hpp"
#include "usp/device/driver.cuda.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace usp::device {
namespace {

/// Primary contexts of the devices that this process has used, retained until it ends.
class PrimaryContexts {
 public:
  PrimaryContexts()
      : current_(driver_call<CUresult (*)(CUcontext*)>("cuCtxGetCurrent")),
        push_(driver_call<CUresult (*)(CUcontext)>("cuCtxPushCurrent")),
        pop_(driver_call<CUresult (*)(CUcontext*)>("cuCtxPopCurrent")),
        retain_(driver_call<CUresult (*)(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain")),
        device_(driver_call<CUresult (*)(CUdevice*, int)>("cuDeviceGet")) {
    check_driver(driver_call<CUresult (*)(unsigned)>("cuInit")(0), "cuInit");
  }

  /// Makes the device's context current unless it is; true when it was pushed.
  [[nodiscard]] bool enter(int device) {
    const CUcontext wanted = of(device);
    CUcontext now = nullptr;
    check_driver(current_(&now), "cuCtxGetCurrent");
    if (now == wanted) return false;
    check_driver(push_(wanted), "cuCtxPushCurrent");
    return true;
  }

  void leave() noexcept {
    CUcontext popped = nullptr;
    (void)pop_(&popped);  // fails only after the driver has shut down
  }

 private:
  [[nodiscard]] CUcontext of(int device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = static_cast<std::size_t>(device);
    if (device >= 0 && at < contexts_.size() && contexts_[at] != nullptr) return contexts_[at];
    CUdevice handle = 0;
    check_driver(device_(&handle, device), "cuDeviceGet", ": this process sees no such GPU");
    contexts_.resize(std::max(contexts_.size(), at + 1), nullptr);
    check_driver(retain_(&contexts_[at], handle), "cuDevicePrimaryCtxRetain");
    return contexts_[at];
  }

  CUresult (*current_)(CUcontext*);
  CUresult (*push_)(CUcontext);
  CUresult (*pop_)(CUcontext*);
  CUresult (*retain_)(CUcontext*, CUdevice);
  CUresult (*device_)(CUdevice*, int);
  std::mutex mutex_;
  std::vector<CUcontext> contexts_;  ///< by device
};

[[nodiscard]] PrimaryContexts& primary_contexts() {
  static PrimaryContexts contexts;
  return contexts;
}

}  // namespace

void check_driver(CUresult result, const char* call, const char* hint) {
  if (result == CUDA_SUCCESS) return;
  throw EnvironmentError(
      fmt::format("{} failed with CUDA driver error {}{}", call, static_cast<int>(result), hint));
}

// The context is pushed and popped: cudaSetDevice on the way back would make a context, of some hundred
// megabytes, on whatever device the thread had by default.
DeviceScope::DeviceScope(int device) : pushed_(primary_contexts().enter(device)) {}

DeviceScope::~DeviceScope() {
  if (pushed_) primary_contexts().leave();
}

}  // namespace usp::device
