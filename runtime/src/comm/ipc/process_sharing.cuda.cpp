// SPDX-License-Identifier: Apache-2.0
#include "process_sharing.hpp"

#include "usp/base/error.hpp"
#include "usp/device/check.cuda.hpp"

#include <utility>

namespace usp::comm {
namespace {

/// Closes on the device a handle was opened on. Destructors call it: after the driver's end there is nothing
/// left.
template <class Close>
void close_on(int device, Close&& close) noexcept {
  try {
    const device::DeviceScope scope(device);
    close();
  } catch (const EnvironmentError&) {
    return;
  }
}

}  // namespace

cudaIpcMemHandle_t share(const device::DeviceBuffer& buffer, int device) {
  const device::DeviceScope scope(device);
  cudaIpcMemHandle_t handle;
  device::check_cuda(cudaIpcGetMemHandle(&handle, buffer.data()), "cudaIpcGetMemHandle");
  return handle;
}

PeerMemory::PeerMemory(const cudaIpcMemHandle_t& handle, int device) : device_(device) {
  const device::DeviceScope scope(device);
  void* memory = nullptr;
  device::check_cuda(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess),
                     "cudaIpcOpenMemHandle");
  data_ = static_cast<std::byte*>(memory);
}
PeerMemory::PeerMemory(PeerMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), device_(other.device_) {}
PeerMemory& PeerMemory::operator=(PeerMemory&& other) noexcept {
  if (this == &other) return *this;
  close();
  data_ = std::exchange(other.data_, nullptr);
  device_ = other.device_;
  return *this;
}
void PeerMemory::close() noexcept {
  if (data_ == nullptr) return;
  close_on(device_, [this] {
    if (cudaIpcCloseMemHandle(data_) != cudaSuccess) cudaGetLastError();
  });
  data_ = nullptr;
}

}  // namespace usp::comm
