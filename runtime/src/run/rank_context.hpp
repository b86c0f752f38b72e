// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/mesh_communicator.hpp"
#include "usp/device/call_stream.hpp"
#include "usp/kernels/cuda_backends.hpp"
#include "usp/runtime/call_run.hpp"
#include "usp/runtime/host_tensor.hpp"

#include <memory>
#include <optional>
#include <vector>

namespace usp {

/// The kernel of a run: the one it names, or the plan's.
[[nodiscard]] std::string kernel_name(const AttentionPlan& plan, const RunOptions& options);
/// The p-th rank of a host takes the p-th of the listed devices, or of all there are, round and round. Throws
/// EnvironmentError where there is no GPU.
[[nodiscard]] int device_of(int rank, const std::vector<int>& devices);

/// What computes and what communicates on one rank of a call: on the host, or on one of its GPUs.
class RankContext {
 public:
  /// Collective over `control`, which outlives this.
  RankContext(const AttentionPlan& plan, const RunOptions& options, comm::Communicator& control);

  [[nodiscard]] kernels::AttentionKernel& kernel() { return *kernel_; }
  [[nodiscard]] comm::DataPlane& data_plane() { return mesh_ ? mesh_->data_plane() : *messages_; }
  [[nodiscard]] kernels::Memory& memory() { return kernel_->memory(); }
  /// Ordinal and name of the GPU; empty on the host.
  [[nodiscard]] std::string device() const;

 private:
  std::optional<device::CallStream> stream_;
  std::unique_ptr<kernels::Memory> memory_;
  std::unique_ptr<kernels::AttentionKernel> kernel_;
  std::optional<comm::MeshCommunicator> mesh_;  ///< of GPUs
  std::unique_ptr<comm::DataPlane> messages_;   ///< of hosts
};

/// A host tensor as a kernel sees it: itself on the host, a copy in a GPU's memory.
class Mirror {
 public:
  Mirror() = default;
  /// Brings the content along. `host` outlives this and stays where it is.
  Mirror(kernels::Memory& memory, HostTensor& host);
  [[nodiscard]] kernels::View view() const { return view_; }
  /// Brings the content back; blocks.
  void fetch();

 private:
  kernels::Memory* memory_ = nullptr;
  HostTensor* host_ = nullptr;
  std::unique_ptr<kernels::Arena> copy_;
  kernels::View view_;
};

/// The same for a plain list.
template <class T>
class MirroredList {
 public:
  MirroredList() = default;
  MirroredList(kernels::Memory& memory, const std::vector<T>& host) : memory_(&memory), count_(host.size()) {
    if (memory.stream() == nullptr) {
      own_ = host;
      return;
    }
    copy_ = memory.make_arena();
    copy_->reserve(bytes());
    memory.from_host(copy_->data(), host.data(), bytes());
    memory.synchronize();
  }
  [[nodiscard]] T* data() {
    if (count_ == 0) return nullptr;
    return copy_ == nullptr ? own_.data() : reinterpret_cast<T*>(copy_->data());
  }
  /// Blocks.
  [[nodiscard]] std::vector<T> fetch() {
    if (copy_ == nullptr) return own_;
    std::vector<T> host(count_);
    memory_->to_host(host.data(), copy_->data(), bytes());
    memory_->synchronize();
    return host;
  }
  void clear() {
    if (count_ > 0) memory_->set_bytes(reinterpret_cast<std::byte*>(data()), 0, bytes());
  }

 private:
  [[nodiscard]] i64 bytes() const { return static_cast<i64>(count_ * sizeof(T)); }
  kernels::Memory* memory_ = nullptr;
  std::size_t count_ = 0;
  std::vector<T> own_;
  std::unique_ptr<kernels::Arena> copy_;
};

}  // namespace usp
