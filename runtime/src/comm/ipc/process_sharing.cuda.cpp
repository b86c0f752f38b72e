// SPDX-License-Identifier: Apache-2.0
#include "process_sharing.hpp"

#include "usp/device/driver.cuda.hpp"

#include <cstring>

namespace usp::comm {
namespace {

constexpr const char* plain_memory =
    ": tensors shared between processes must be plain device memory (cudaMalloc)";

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

template <class Handle>
[[nodiscard]] std::array<unsigned char, CUDA_IPC_HANDLE_SIZE> key_of(const Handle& handle) {
  std::array<unsigned char, CUDA_IPC_HANDLE_SIZE> key;
  std::memcpy(key.data(), &handle, key.size());
  return key;
}

}  // namespace

SharedRegion Exports::region(const StridedBytes& region) {
  static const auto attribute =
      device::driver_call<CUresult (*)(void*, CUpointer_attribute, CUdeviceptr)>("cuPointerGetAttribute");
  static const auto range =
      device::driver_call<CUresult (*)(CUdeviceptr*, std::size_t*, CUdeviceptr)>("cuMemGetAddressRange");
  const auto address = reinterpret_cast<CUdeviceptr>(region.data);
  unsigned long long number = 0;
  device::check_driver(attribute(&number, CU_POINTER_ATTRIBUTE_BUFFER_ID, address), "cuPointerGetAttribute",
                       plain_memory);
  int device = 0;
  device::check_driver(attribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address),
                       "cuPointerGetAttribute", plain_memory);
  const device::DeviceScope scope(device);  // both calls below look in the thread's current context only
  CUdeviceptr base = 0;
  device::check_driver(range(&base, nullptr, address), "cuMemGetAddressRange", plain_memory);
  auto known = handles_.find(number);
  if (known == handles_.end()) {
    cudaIpcMemHandle_t handle;
    device::check_cuda(cudaIpcGetMemHandle(&handle, reinterpret_cast<void*>(base)), "cudaIpcGetMemHandle");
    known = handles_.emplace(number, handle).first;
  }
  return {known->second, static_cast<i64>(address - base), region};
}

Imports::~Imports() {
  if (events_.empty() && memory_.empty()) return;
  close_on(device_, [this] {
    for (const auto& [key, event] : events_)
      if (cudaEventDestroy(event) != cudaSuccess) cudaGetLastError();
    for (const auto& [key, memory] : memory_)
      if (cudaIpcCloseMemHandle(memory) != cudaSuccess) cudaGetLastError();
  });
}

StridedBytes Imports::region(const SharedRegion& region) {
  const Key key = key_of(region.allocation);
  auto known = memory_.find(key);
  if (known == memory_.end()) {
    const device::DeviceScope scope(device_);
    void* memory = nullptr;
    device::check_cuda(cudaIpcOpenMemHandle(&memory, region.allocation, cudaIpcMemLazyEnablePeerAccess),
                       "cudaIpcOpenMemHandle");
    known = memory_.emplace(key, static_cast<std::byte*>(memory)).first;
  }
  StridedBytes mine = region.shape;
  mine.data = known->second + region.offset;
  return mine;
}

device::EventHandle Imports::event(const cudaIpcEventHandle_t& handle) {
  const Key key = key_of(handle);
  auto known = events_.find(key);
  if (known == events_.end()) {
    const device::DeviceScope scope(device_);
    cudaEvent_t event = nullptr;
    device::check_cuda(cudaIpcOpenEventHandle(&event, handle), "cudaIpcOpenEventHandle");
    known = events_.emplace(key, event).first;
  }
  return known->second;
}

cudaIpcEventHandle_t share(const device::Event& event) {
  const device::DeviceScope scope(event.device());
  cudaIpcEventHandle_t handle;
  device::check_cuda(cudaIpcGetEventHandle(&handle, event.get()), "cudaIpcGetEventHandle");
  return handle;
}

}  // namespace usp::comm
