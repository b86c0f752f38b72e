// SPDX-License-Identifier: Apache-2.0
#include "peer_arena.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace usp::comm {
namespace {

/// The driver shares memory in blocks of this size: a multiple leaves nothing else in the last one.
constexpr i64 shared_block_bytes = i64{2} << 20;

/// A rank's answer to the growth of the arenas.
struct Grown {
  cudaIpcMemHandle_t handle{};
  bool has_room = true;
};

/// One past the last byte, from the first.
[[nodiscard]] i64 span_of(const StridedBytes& region) {
  i64 span = region.run_bytes;
  for (int axis = 0; axis < 3; ++axis) span += (region.count[axis] - 1) * region.stride[axis];
  return span;
}

}  // namespace

PeerArena::PeerArena(Communicator& control, const device::CallStream& compute)
    : control_(control),
      compute_(compute),
      capacity_(static_cast<std::size_t>(control.size()), 0),
      peers_(static_cast<std::size_t>(control.size())) {}

void PeerArena::reserve(i64 bytes) {
  std::vector<i64> wanted(capacity_.size());
  control_.all_gather(&bytes, wanted.data(), sizeof bytes);
  bool grows = false;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    wanted[i] = std::max(wanted[i], capacity_[i]);
    grows = grows || wanted[i] > capacity_[i];
  }
  if (!grows) return;
  compute_.synchronize();  // every call on this stream has waited for the copies of its peers
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (wanted[i] > capacity_[i]) peers_[i].close();
  control_.barrier();  // memory may be freed once all peers have closed it
  open_peers(wanted);
}

/// A rank without room says so, so that no other waits for it.
void PeerArena::open_peers(const std::vector<i64>& wanted) {
  const auto me = static_cast<std::size_t>(control_.rank());
  Grown mine;
  std::exception_ptr no_room;
  if (wanted[me] > capacity_[me]) {
    capacity_[me] = 0;
    buffer_ = device::DeviceBuffer();  // first, so that the peak is the greater of the two
    try {
      buffer_ = device::DeviceBuffer(
          compute_.device(), (wanted[me] + shared_block_bytes - 1) / shared_block_bytes * shared_block_bytes);
      mine.handle = share(buffer_, compute_.device());
    } catch (const EnvironmentError&) {
      no_room = std::current_exception();
      mine.has_room = false;
    }
  }
  std::vector<Grown> all(wanted.size());
  control_.all_gather(&mine, all.data(), sizeof mine);
  if (no_room) std::rethrow_exception(no_room);
  for (std::size_t i = 0; i < all.size(); ++i)
    if (!all[i].has_room)
      throw EnvironmentError(fmt::format(
          "rank {} has no room for the {} bytes that its peers copy from and into; see its own error", i,
          wanted[i]));
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (wanted[i] == capacity_[i]) continue;
    if (i != me) peers_[i] = PeerMemory(all[i].handle, compute_.device());
    capacity_[i] = wanted[i];
  }
}

ArenaRegion PeerArena::name_of(const StridedBytes& region) const {
  const i64 offset = region.data - data();
  expects(offset >= 0 && offset + span_of(region) <= bytes(),
          "a message names memory outside the arena that peers reach");
  return {offset, region};
}

StridedBytes PeerArena::region_of(int peer, const ArenaRegion& region) const {
  const auto i = static_cast<std::size_t>(peer);
  if (region.offset < 0 || region.offset + span_of(region.shape) > capacity_[i])
    throw EnvironmentError(
        fmt::format("rank {} names memory beyond the {} bytes of its arena; the ranks run different versions "
                    "of usp",
                    peer, capacity_[i]));
  StridedBytes mine = region.shape;
  mine.data = peers_[i].data() + region.offset;
  return mine;
}

}  // namespace usp::comm
