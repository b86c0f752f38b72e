// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stream_flags.hpp"

#include "usp/comm/communicator.hpp"

#include <atomic>
#include <cstddef>
#include <deque>
#include <string>

namespace usp::comm {

/// Host memory that all ranks of a host map, threads too, and that their GPUs reach (POSIX shared memory,
/// page-locked). Unmapped in the end; its name is gone by then.
class HostSegment {
 public:
  /// Collective. Throws EnvironmentError where there is no shared memory.
  HostSegment(Communicator& control, std::size_t bytes);
  ~HostSegment();
  HostSegment(const HostSegment&) = delete;
  HostSegment& operator=(const HostSegment&) = delete;
  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_;
};

/// The flags of all ranks, by the rank that awaits them. They lie in host memory, so that a thread can set
/// them while every hardware queue of the GPU is held up by waits. A flag is 0 between passes.
class SharedFlags {
 public:
  explicit SharedFlags(Communicator& control) : ranks_(static_cast<std::size_t>(control.size())) {}
  /// Collective: room for so many slots of every peer, on the rank that needs most. Flags of earlier room
  /// keep their place for what is in flight.
  void reserve(Communicator& control, std::size_t slots);

  /// Awaited by `owner`, set by `peer`: it is ready for a copy, or has made one.
  [[nodiscard]] Flag* ready(int owner, int peer, std::size_t slot) const {
    return flag(owner, peer, 0, slot);
  }
  [[nodiscard]] Flag* done(int owner, int peer, std::size_t slot) const { return flag(owner, peer, 1, slot); }
  [[nodiscard]] bool has_room() const { return !rooms_.empty(); }
  /// What a rank says to the others: it has ended the job; its streams have ended.
  [[nodiscard]] std::atomic_ref<Flag> notice(int rank) const { return word(rank, 0); }
  [[nodiscard]] std::atomic_ref<Flag> left(int rank) const { return word(rank, 1); }
  /// Sets all flags that `owner` awaits.
  void set_all(int owner) const;

 private:
  static constexpr std::size_t words_per_rank = 16;  ///< a cache line
  struct Room {
    Room(Communicator& control, std::size_t ranks, std::size_t of_slots)
        : slots(of_slots), segment(control, ranks * (words_per_rank + 2 * ranks * of_slots) * sizeof(Flag)) {}
    std::size_t slots;
    HostSegment segment;
  };
  [[nodiscard]] std::atomic_ref<Flag> word(int rank, std::size_t at) const {
    return std::atomic_ref<Flag>(reinterpret_cast<Flag*>(
        rooms_.front().segment.data())[static_cast<std::size_t>(rank) * words_per_rank + at]);
  }
  [[nodiscard]] Flag* flags_of(const Room& room, int owner) const {
    return reinterpret_cast<Flag*>(room.segment.data()) + ranks_ * words_per_rank +
           static_cast<std::size_t>(owner) * 2 * ranks_ * room.slots;
  }
  [[nodiscard]] Flag* flag(int owner, int peer, std::size_t kind, std::size_t slot) const {
    const Room& room = rooms_.back();
    return flags_of(room, owner) + (2 * static_cast<std::size_t>(peer) + kind) * room.slots + slot;
  }

  std::size_t ranks_;
  std::deque<Room> rooms_;  ///< the last is used
};

}  // namespace usp::comm
