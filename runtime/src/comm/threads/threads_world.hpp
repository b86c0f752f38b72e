// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../group/ticket_table.hpp"
#include "../regions/region_walk.hpp"

#include "usp/comm/communicator.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace usp::comm {

/// One end of a message. Changes state under the world's lock; `done` may be read without it.
///   open     posted, the other end is not there yet
///   paired   both ends are posted; the receiver's progress copies a part, a wait or test the rest
///   copying  the owner of one end copies, without the lock
struct Slot {
  enum class State : std::uint8_t { free, open, paired, copying, done };
  std::atomic<State> state{State::free};
  Message message;
  i64 bytes = 0;
  i64 moved = 0;
  int owner = 0;  ///< rank of the job
  Slot* partner = nullptr;
  PayloadCopy payload;       ///< of a pair, in its receiving end
  Slot* previous = nullptr;  ///< in its lane
  Slot* next = nullptr;
};

/// Ends in a list, oldest first.
struct MatchQueue {
  Slot* first = nullptr;
  Slot* last = nullptr;
  void append(Slot& slot);
  /// Removes and returns the oldest end with this tag; null when there is none.
  Slot* take(i64 tag);
  void remove(Slot& slot);
};

/// Receives of one rank whose senders are there.
struct ReadyQueue {
  MatchQueue ready;
  std::atomic<bool> any{false};  ///< whether `ready` has some, for a look without the lock
  void append(Slot& slot);
  void remove(Slot& slot);
};

/// What the ranks of one communicator share.
struct GroupState {
  explicit GroupState(std::vector<int> ranks)
      : job_ranks(std::move(ranks)),
        sends(job_ranks.size() * job_ranks.size()),
        receives(sends.size()),
        ready_queues(job_ranks.size()),
        slots(job_ranks.size()) {}
  std::vector<int> job_ranks;
  std::vector<MatchQueue> sends;         ///< open ends, [source][target]
  std::vector<MatchQueue> receives;      ///< open ends, [source][target]
  std::vector<ReadyQueue> ready_queues;  ///< by rank
  /// By rank. They live here, so that an end outlives the communicator of a rank that fails.
  std::vector<TicketTable<Slot>> slots;
};

/// What the threads of one job share: one lock, held for list work only, and one report of what went wrong.
class World {
 public:
  World(int ranks, CommOptions options);
  [[nodiscard]] const CommOptions& options() const { return options_; }
  [[nodiscard]] std::mutex& lock() { return mutex_; }
  [[nodiscard]] bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  /// Ends the job as `rank`, unless it is over already; returns when no rank reads its memory any more.
  void abort(const CommunicationFault& fault, int rank);
  /// The same, with the lock held.
  void abort_locked(const CommunicationFault& fault, int rank, std::unique_lock<std::mutex>& lock);
  /// Throws the failure of the job; waits first until no rank reads memory of `rank`.
  [[noreturn]] void raise(int rank, std::unique_lock<std::mutex>& lock);
  /// The rank whose abort came first; valid once aborted.
  [[nodiscard]] int origin() const { return origin_; }
  [[nodiscard]] const CommunicationFault& fault() const { return fault_; }

  /// Sleeps until woken or `deadline`; false at the deadline.
  bool sleep(int rank, std::unique_lock<std::mutex>& lock, std::chrono::steady_clock::time_point deadline);
  /// With the lock held.
  void wake(int rank);
  /// Notes that another rank starts or ends copying from or to memory of `rank`; with the lock held.
  void pin(int rank) { ++sleepers_[static_cast<std::size_t>(rank)].pins; }
  void unpin(int rank);
  /// Ranks that wait for no peer; with the lock held.
  [[nodiscard]] std::vector<int> busy_ranks() const;

  /// The hub of the `sequence`-th group of `parent`: the first member that asks makes it.
  [[nodiscard]] std::shared_ptr<GroupState> group_state_of(const GroupState* parent, i64 sequence,
                                                           const std::vector<int>& ranks);

 private:
  struct Sleeper {
    std::condition_variable wakes;
    bool asleep = false;
    int pins = 0;
  };
  struct Pending {
    std::shared_ptr<GroupState> group_state;
    std::size_t absent = 0;
  };
  CommOptions options_;
  std::mutex mutex_;
  std::atomic<bool> aborted_{false};
  int origin_ = -1;
  CommunicationFault fault_;
  std::vector<Sleeper> sleepers_;
  std::map<std::pair<const GroupState*, i64>, Pending> pending_;
};

/// The communicator of one rank of a hub.
[[nodiscard]] std::unique_ptr<Communicator> make_thread_communicator(World& world,
                                                                     std::shared_ptr<GroupState> group_state,
                                                                     int rank);

}  // namespace usp::comm
