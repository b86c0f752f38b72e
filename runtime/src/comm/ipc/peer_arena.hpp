// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "process_sharing.hpp"

#include "usp/comm/communicator.hpp"
#include "usp/device/call_stream.hpp"
#include "usp/kernels/memory.hpp"

#include <memory>
#include <vector>

namespace usp::comm {

/// A region of a rank's arena as other ranks find it.
struct ArenaRegion {
  i64 offset = 0;      ///< of the region's first byte in the arena
  StridedBytes shape;  ///< all but `data`
};

/// Memory of this rank that its peers reach, and that of its peers as reached here: opened by CUDA IPC
/// between processes, by its address between threads.
class PeerArena final : public kernels::Arena {
 public:
  enum class Ranks : std::uint8_t { threads, processes };
  /// Local; `control` and `compute` outlive it. @param own what holds this rank's memory, between threads;
  /// null: plain device memory
  PeerArena(Communicator& control, const device::CallStream& compute, Ranks ranks,
            std::unique_ptr<kernels::Arena> own = nullptr);

  /// As DataPlane::peer_arena.
  void reserve(i64 bytes) override;
  [[nodiscard]] std::byte* data() const override { return own_ == nullptr ? buffer_.data() : own_->data(); }
  [[nodiscard]] i64 bytes() const override { return capacity_[static_cast<std::size_t>(control_.rank())]; }
  /// A peer's memory as this rank reaches it; null: none yet.
  [[nodiscard]] std::byte* data_of(int peer) const { return reached_[static_cast<std::size_t>(peer)]; }

  /// Throws InternalError where the region is not in the arena.
  [[nodiscard]] ArenaRegion name_of(const StridedBytes& region) const;
  /// Throws EnvironmentError for a region outside a peer's arena.
  void check_region(int peer, const ArenaRegion& region) const;
  /// A peer's region in this rank's address space.
  [[nodiscard]] StridedBytes region_of(int peer, const ArenaRegion& region) const {
    StridedBytes mine = region.shape;
    mine.data = data_of(peer) + region.offset;
    return mine;
  }

 private:
  struct Grown;
  [[nodiscard]] Grown grow(i64 bytes);
  void open_peers(const std::vector<i64>& wanted);

  Communicator& control_;
  const device::CallStream& compute_;
  const Ranks ranks_;
  std::unique_ptr<kernels::Arena> own_;  ///< null: buffer_
  device::DeviceBuffer buffer_;
  std::vector<i64> capacity_;        ///< per rank
  std::vector<PeerMemory> opened_;   ///< per rank, between processes
  std::vector<std::byte*> reached_;  ///< per rank
};

}  // namespace usp::comm
