// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "process_sharing.hpp"

#include "usp/comm/communicator.hpp"
#include "usp/device/call_stream.hpp"
#include "usp/kernels/memory.hpp"

#include <vector>

namespace usp::comm {

/// A region of a rank's arena as other processes find it.
struct ArenaRegion {
  i64 offset = 0;      ///< of the region's first byte in the arena
  StridedBytes shape;  ///< all but `data`
};

/// Communicator::peer_arena() of processes on GPUs: this rank's memory, and that of its peers as opened here.
class PeerArena final : public kernels::Arena {
 public:
  /// Local; `control` and `compute` outlive it.
  PeerArena(Communicator& control, const device::CallStream& compute);

  void reserve(i64 bytes) override;
  [[nodiscard]] std::byte* data() const override { return buffer_.data(); }
  [[nodiscard]] i64 bytes() const override { return capacity_[static_cast<std::size_t>(control_.rank())]; }

  /// Throws InternalError where the region is not in the arena.
  [[nodiscard]] ArenaRegion name_of(const StridedBytes& region) const;
  /// A peer's region in this process's address space. Throws EnvironmentError for one outside its arena.
  [[nodiscard]] StridedBytes region_of(int peer, const ArenaRegion& region) const;

 private:
  void open_peers(const std::vector<i64>& wanted);

  Communicator& control_;
  const device::CallStream& compute_;
  device::DeviceBuffer buffer_;
  std::vector<i64> capacity_;      ///< per rank
  std::vector<PeerMemory> peers_;  ///< per rank; none for the own
};

}  // namespace usp::comm
