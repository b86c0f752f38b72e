// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/device/device.hpp"

#include <array>
#include <cstddef>
#include <cuda_runtime_api.h>
#include <map>

/// Device memory and events between processes of one host (CUDA IPC).
namespace usp::comm {

[[nodiscard]] cudaIpcMemHandle_t share(const device::DeviceBuffer& buffer, int device);
[[nodiscard]] cudaIpcEventHandle_t share(const device::Event& event);

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

/// Events of other processes, opened once each; closed in the end.
class PeerEvents {
 public:
  explicit PeerEvents(int device) : device_(device) {}
  ~PeerEvents();
  PeerEvents(const PeerEvents&) = delete;
  PeerEvents& operator=(const PeerEvents&) = delete;
  [[nodiscard]] device::EventHandle open(const cudaIpcEventHandle_t& handle);

 private:
  using Key = std::array<unsigned char, CUDA_IPC_HANDLE_SIZE>;
  int device_;
  std::map<Key, device::EventHandle> events_;
};

}  // namespace usp::comm
