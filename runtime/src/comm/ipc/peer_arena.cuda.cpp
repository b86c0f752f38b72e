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

/// One past the last byte, from the first.
[[nodiscard]] i64 span_of(const StridedBytes& region) {
  i64 span = region.run_bytes;
  for (int axis = 0; axis < 3; ++axis) span += (region.count[axis] - 1) * region.stride[axis];
  return span;
}

}  // namespace

/// A rank's answer to the growth of the arenas.
struct PeerArena::Grown {
  cudaIpcMemHandle_t handle{};
  std::byte* data = nullptr;
  bool has_room = true;
};

PeerArena::PeerArena(Communicator& control, const device::CallStream& compute, Ranks ranks,
                     std::unique_ptr<kernels::Arena> own)
    : control_(control),
      compute_(compute),
      ranks_(ranks),
      own_(std::move(own)),
      capacity_(static_cast<std::size_t>(control.size()), 0),
      opened_(capacity_.size()),
      reached_(capacity_.size(), nullptr) {
  expects(own_ == nullptr || ranks_ == Ranks::threads, "only memory of its own is shared with processes");
}

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
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] == capacity_[i]) continue;
    opened_[i].close();
    capacity_[i] = 0;  // also where a rank has no room
    reached_[i] = nullptr;
  }
  control_.barrier();  // memory may be freed once all peers have closed it
  open_peers(wanted);
}

PeerArena::Grown PeerArena::grow(i64 bytes) {
  Grown grown;
  if (own_ != nullptr) {
    own_->reserve(bytes);
  } else {
    buffer_ = device::DeviceBuffer();  // first, so that the peak is the greater of the two
    buffer_ = device::DeviceBuffer(
        compute_.device(), (bytes + shared_block_bytes - 1) / shared_block_bytes * shared_block_bytes);
    if (ranks_ == Ranks::processes) grown.handle = share(buffer_, compute_.device());
  }
  grown.data = data();
  return grown;
}

/// A rank without room says so, so that no other waits for it.
void PeerArena::open_peers(const std::vector<i64>& wanted) {
  const auto me = static_cast<std::size_t>(control_.rank());
  Grown mine;
  std::exception_ptr no_room;
  if (wanted[me] > capacity_[me]) {
    try {
      mine = grow(wanted[me]);
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
    if (i != me && ranks_ == Ranks::processes) opened_[i] = PeerMemory(all[i].handle, compute_.device());
    reached_[i] = i == me ? data() : ranks_ == Ranks::processes ? opened_[i].data() : all[i].data;
    capacity_[i] = wanted[i];
  }
}

ArenaRegion PeerArena::name_of(const StridedBytes& region) const {
  const i64 offset = region.data - data();
  expects(offset >= 0 && offset + span_of(region) <= bytes(),
          "a message names memory outside the arena that peers reach");
  return {offset, region};
}

void PeerArena::check_region(int peer, const ArenaRegion& region) const {
  const i64 capacity = capacity_[static_cast<std::size_t>(peer)];
  if (region.offset < 0 || region.offset + span_of(region.shape) > capacity)
    throw EnvironmentError(
        fmt::format("rank {} names memory beyond the {} bytes of its arena; the ranks run different versions "
                    "of usp",
                    peer, capacity));
}

}  // namespace usp::comm
