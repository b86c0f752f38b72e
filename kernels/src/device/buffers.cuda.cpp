// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/device/check.cuda.hpp"
#include "usp/device/device.hpp"

#include <fmt/format.h>

#include <utility>

namespace usp::device {

DeviceBuffer::DeviceBuffer(int device, i64 bytes) : bytes_(bytes), device_(device) {
  if (bytes == 0) return;
  const DeviceScope scope(device);
  void* memory = nullptr;
  if (cudaMalloc(&memory, static_cast<std::size_t>(bytes)) != cudaSuccess) {
    cudaGetLastError();
    std::size_t free_bytes = 0, total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    throw EnvironmentError(fmt::format("GPU {} has no room for {} bytes: {} of {} are free", device, bytes,
                                       free_bytes, total_bytes));
  }
  data_ = static_cast<std::byte*>(memory);
}
DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr && cudaFree(data_) != cudaSuccess) cudaGetLastError();
}
DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept {
  *this = std::move(other);
}
DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(device_, other.device_);
  return *this;
}

PinnedBuffer::PinnedBuffer(i64 bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* memory = nullptr;
  check_cuda(cudaMallocHost(&memory, static_cast<std::size_t>(bytes)), "cudaMallocHost");
  data_ = static_cast<std::byte*>(memory);
}
PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr && cudaFreeHost(data_) != cudaSuccess) cudaGetLastError();
}
PinnedBuffer::PinnedBuffer(PinnedBuffer&& other) noexcept {
  *this = std::move(other);
}
PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace usp::device
