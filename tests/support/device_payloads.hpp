// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "data_plane_contract.hpp"

#include "usp/kernels/memory.hpp"

#include <memory>
#include <vector>

namespace usp::test {

/// Payloads of the contract in a GPU's memory: those that peers reach in the arena of the data plane.
class DevicePayloads final : public contract::PayloadMemory {
 public:
  /// Collective.
  DevicePayloads(comm::DataPlane& data_plane, kernels::Memory& memory)
      : memory_(memory), reached_(*data_plane.peer_arena(memory)), own_(memory.make_arena()) {
    reached_.reserve(room);
    own_->reserve(room);
  }
  std::byte* place(std::vector<std::byte>& host, bool reached) override {
    i64& used = reached ? used_reached_ : used_own_;
    std::byte* const at = (reached ? reached_.data() : own_->data()) + used;
    used += align_buffer(static_cast<i64>(host.size()));
    contract::require(used <= room, "room for the payloads of the test");
    return at;
  }
  void upload(std::byte* at, const std::vector<std::byte>& host) override {
    memory_.from_host(at, host.data(), static_cast<i64>(host.size()));
  }
  void download(std::vector<std::byte>& host, const std::byte* at) override {
    memory_.to_host(host.data(), at, static_cast<i64>(host.size()));
    memory_.synchronize();
  }

 private:
  static constexpr i64 room = i64{64} << 20;
  kernels::Memory& memory_;
  kernels::Arena& reached_;
  std::unique_ptr<kernels::Arena> own_;
  i64 used_reached_ = 0, used_own_ = 0;
};

}  // namespace usp::test
