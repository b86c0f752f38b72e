// SPDX-License-Identifier: Apache-2.0
#include "threads_world.hpp"

#include <algorithm>
#include <utility>

namespace usp::comm {

void MatchQueue::append(Slot& slot) {
  slot.previous = last;
  slot.next = nullptr;
  (last == nullptr ? first : last->next) = &slot;
  last = &slot;
}

Slot* MatchQueue::take(i64 tag) {
  Slot* slot = first;
  while (slot != nullptr && slot->message.tag != tag) slot = slot->next;
  if (slot != nullptr) remove(*slot);
  return slot;
}

void MatchQueue::remove(Slot& slot) {
  (slot.previous == nullptr ? first : slot.previous->next) = slot.next;
  (slot.next == nullptr ? last : slot.next->previous) = slot.previous;
}

void ReadyQueue::append(Slot& slot) {
  ready.append(slot);
  any.store(true, std::memory_order_relaxed);
}

void ReadyQueue::remove(Slot& slot) {
  ready.remove(slot);
  any.store(ready.first != nullptr, std::memory_order_relaxed);
}

World::World(int ranks, CommOptions options)
    : options_(std::move(options)), sleepers_(static_cast<std::size_t>(ranks)) {}

void World::abort(const CommunicationFault& fault, int rank) {
  std::unique_lock<std::mutex> lock(mutex_);
  abort_locked(fault, rank, lock);
}

void World::abort_locked(const CommunicationFault& fault, int rank, std::unique_lock<std::mutex>& lock) {
  if (!aborted()) {
    fault_ = fault;
    origin_ = rank;
    aborted_.store(true, std::memory_order_release);
    for (Sleeper& sleeper : sleepers_) sleeper.wakes.notify_one();
  }
  // No copy starts any more; one in flight ends by itself.
  Sleeper& mine = sleepers_[static_cast<std::size_t>(rank)];
  mine.wakes.wait(lock, [&] { return mine.pins == 0; });
}

void World::raise(int rank, std::unique_lock<std::mutex>& lock) {
  abort_locked(fault_, rank, lock);
  throw CommunicationError(fault_);
}

bool World::sleep(int rank, std::unique_lock<std::mutex>& lock,
                  std::chrono::steady_clock::time_point deadline) {
  Sleeper& mine = sleepers_[static_cast<std::size_t>(rank)];
  mine.asleep = true;
  const bool woken = mine.wakes.wait_until(lock, deadline) == std::cv_status::no_timeout;
  mine.asleep = false;
  return woken;
}

void World::wake(int rank) {
  Sleeper& sleeper = sleepers_[static_cast<std::size_t>(rank)];
  if (sleeper.asleep) sleeper.wakes.notify_one();
}

void World::unpin(int rank) {
  Sleeper& owner = sleepers_[static_cast<std::size_t>(rank)];
  --owner.pins;
  owner.wakes.notify_one();
}

std::vector<int> World::busy_ranks() const {
  std::vector<int> busy;
  for (std::size_t rank = 0; rank < sleepers_.size(); ++rank)
    if (!sleepers_[rank].asleep) busy.push_back(static_cast<int>(rank));
  return busy;
}

std::shared_ptr<GroupState> World::group_state_of(const GroupState* parent, i64 sequence,
                                                  const std::vector<int>& ranks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto key = std::make_pair(parent, sequence);
  Pending& pending = pending_[key];
  if (pending.group_state == nullptr) pending = {std::make_shared<GroupState>(ranks), ranks.size()};
  std::shared_ptr<GroupState> group_state = pending.group_state;
  if (--pending.absent == 0) pending_.erase(key);
  return group_state;
}

}  // namespace usp::comm
