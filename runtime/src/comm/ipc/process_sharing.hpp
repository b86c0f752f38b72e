// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/device/device.hpp"

#include <cstddef>
#include <cuda_runtime_api.h>

/// Device memory between processes of one host (CUDA IPC).
namespace usp::comm {

[[nodiscard]] cudaIpcMemHandle_t share(const device::DeviceBuffer& buffer, int device);

/// Memory of another process, opened on a device of this one; closed in the end. Both GPUs must have opened
/// peer access before: else every copy silently goes through the host.
class PeerMemory {
 public:
  PeerMemory() = default;
  PeerMemory(const cudaIpcMemHandle_t& handle, int device);
  ~PeerMemory() { close(); }
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  PeerMemory(PeerMemory&& other) noexcept;
  PeerMemory& operator=(PeerMemory&& other) noexcept;
  [[nodiscard]] std::byte* data() const { return data_; }
  void close() noexcept;

 private:
  std::byte* data_ = nullptr;
  int device_ = 0;
};

}  // namespace usp::comm
