// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/message.hpp"
#include "usp/device/device.hpp"

#include <array>
#include <cuda_runtime_api.h>
#include <map>

/// Device memory and events between processes of one host (CUDA IPC).
namespace usp::comm {

/// A region as another process can find it.
struct SharedRegion {
  cudaIpcMemHandle_t allocation{};
  i64 offset = 0;      ///< of the region's first byte in its allocation
  StridedBytes shape;  ///< all but `data`
};

/// Names what this process owns. Allocations are asked for once.
class Exports {
 public:
  /// Throws EnvironmentError for memory that is no plain allocation of this process.
  [[nodiscard]] SharedRegion region(const StridedBytes& region);

 private:
  std::map<unsigned long long, cudaIpcMemHandle_t> handles_;  ///< by the allocation's own number
};

/// Opens what other processes own, once each; closes it in the end. Both GPUs must have opened peer access
/// before: else every copy silently goes through the host.
class Imports {
 public:
  explicit Imports(int device) : device_(device) {}
  ~Imports();
  Imports(const Imports&) = delete;
  Imports& operator=(const Imports&) = delete;
  [[nodiscard]] StridedBytes region(const SharedRegion& region);
  [[nodiscard]] device::EventHandle event(const cudaIpcEventHandle_t& handle);

 private:
  using Key = std::array<unsigned char, CUDA_IPC_HANDLE_SIZE>;
  int device_;
  std::map<Key, std::byte*> memory_;
  std::map<Key, device::EventHandle> events_;
};

[[nodiscard]] cudaIpcEventHandle_t share(const device::Event& event);

}  // namespace usp::comm
