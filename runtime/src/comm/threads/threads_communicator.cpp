// SPDX-License-Identifier: Apache-2.0
#include "../failure/faults.hpp"
#include "../failure/wait_watch.hpp"
#include "../group/collectives.hpp"
#include "threads_world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace usp::comm {
namespace {

using State = Slot::State;

/// What one call of progress() copies at most, so that a kernel's tile is not held up: some 10 us.
constexpr i64 part_bytes = i64{1} << 17;
/// What a message costs beside its bytes.
constexpr i64 message_cost_bytes = i64{1} << 12;
constexpr i64 all_bytes = std::numeric_limits<i64>::max();

class ThreadCommunicator final : public CollectiveCommunicator {
 public:
  ThreadCommunicator(World& world, std::shared_ptr<GroupState> group_state, int rank)
      : world_(world),
        group_(std::move(group_state)),
        rank_(rank),
        job_rank_(group_->job_ranks[static_cast<std::size_t>(rank)]),
        slots_(group_->slots[static_cast<std::size_t>(rank)]),
        ready_queue_(group_->ready_queues[static_cast<std::size_t>(rank)]) {}
  ~ThreadCommunicator() override {
    const auto in_flight = slots_.in_flight();
    if (in_flight > 0) world_.abort(unfinished_fault(job_rank_, in_flight), job_rank_);
  }
  ThreadCommunicator(const ThreadCommunicator&) = delete;
  ThreadCommunicator& operator=(const ThreadCommunicator&) = delete;

  [[nodiscard]] const char* name() const override { return "threads"; }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(group_->job_ranks.size()); }
  [[nodiscard]] const CommOptions& options() const override { return world_.options(); }
  i64 wait(Ticket ticket) override;
  [[nodiscard]] std::optional<i64> test(Ticket ticket) override;
  void progress() override;
  void reserve(i64 messages, i64 regions) override;
  [[nodiscard]] std::unique_ptr<Communicator> group(const std::vector<int>& ranks) override;
  void abort(const CommunicationFault& fault) override { world_.abort(fault, job_rank_); }

 protected:
  void start(const Message* messages, i64 count, Ticket* tickets) override;

 private:
  using Lock = std::unique_lock<std::mutex>;
  [[nodiscard]] int job_rank(int rank) const { return group_->job_ranks[static_cast<std::size_t>(rank)]; }
  Ticket open_slot(const Message& message);
  void check_abort();
  void match(Slot& slot, Lock& lock);
  i64 copy(Slot& slot, i64 limit, Lock& lock);
  void copy_part(Lock& lock);
  [[nodiscard]] ReadyQueue& ready_queue_of(const Slot& slot) {
    return group_->ready_queues[static_cast<std::size_t>(slot.message.send ? slot.message.peer : rank_)];
  }
  i64 finish(Slot& slot, Ticket ticket);
  [[noreturn]] void report_late(const Slot& slot, Lock& lock);

  World& world_;
  std::shared_ptr<GroupState> group_;
  int rank_;
  int job_rank_;
  TicketTable<Slot>& slots_;
  ReadyQueue& ready_queue_;
  i64 groups_ = 0;
};

void ThreadCommunicator::reserve(i64 messages, i64 /*regions*/) {
  slots_.reserve(messages);
}

Ticket ThreadCommunicator::open_slot(const Message& message) {
  const Ticket ticket = slots_.open([this](i64 count) { slots_.reserve(count); });
  Slot& slot = slots_[ticket];
  slot.message = message;
  slot.bytes = message.bytes();
  slot.moved = 0;
  slot.owner = job_rank_;
  slot.state.store(slot.bytes == 0 ? State::done : State::open, std::memory_order_relaxed);
  return ticket;
}

void ThreadCommunicator::start(const Message* messages, i64 count, Ticket* tickets) {
  check_abort();
  for (i64 i = 0; i < count; ++i) tickets[i] = open_slot(messages[i]);
  Lock lock(world_.lock());
  if (world_.aborted()) world_.raise(job_rank_, lock);
  for (i64 i = 0; i < count; ++i) {
    Slot& slot = slots_[tickets[i]];
    if (slot.bytes > 0) match(slot, lock);
  }
}

/// Pairs an end with the other one, or leaves it in its lane. Lock held.
void ThreadCommunicator::match(Slot& slot, Lock& lock) {
  const Message& message = slot.message;
  const int source = message.send ? rank_ : message.peer;
  const int target = message.send ? message.peer : rank_;
  const auto at =
      static_cast<std::size_t>(source) * group_->job_ranks.size() + static_cast<std::size_t>(target);
  Slot* partner = (message.send ? group_->receives : group_->sends)[at].take(message.tag);
  if (partner == nullptr) {
    (message.send ? group_->sends : group_->receives)[at].append(slot);
    return;
  }
  if (partner->bytes != slot.bytes) {
    world_.abort_locked(size_fault(message, job_rank_, job_rank(message.peer), slot.bytes, partner->bytes),
                        job_rank_, lock);
    world_.raise(job_rank_, lock);
  }
  slot.partner = partner;
  partner->partner = &slot;
  Slot& receive = message.send ? *partner : slot;
  receive.payload = PayloadCopy((message.send ? slot : *partner).message, receive.message);
  ready_queue_of(slot).append(receive);
  slot.state.store(State::paired, std::memory_order_relaxed);
  partner->state.store(State::paired, std::memory_order_relaxed);
  world_.wake(partner->owner);
}

/// Moves `limit` bytes of a pair's payload, or what is left; the lock is let go meanwhile. Returns how many.
i64 ThreadCommunicator::copy(Slot& slot, i64 limit, Lock& lock) {
  Slot& partner = *slot.partner;
  Slot& receive = slot.message.send ? partner : slot;
  ReadyQueue& ready_queue = ready_queue_of(slot);
  ready_queue.remove(receive);
  slot.state.store(State::copying, std::memory_order_relaxed);
  partner.state.store(State::copying, std::memory_order_relaxed);
  const int owner = partner.owner;
  world_.pin(owner);
  lock.unlock();
  const i64 moved = receive.payload.advance(limit);
  lock.lock();
  const bool done = receive.payload.done();
  if (done)
    slot.moved = partner.moved = receive.payload.moved();
  else
    ready_queue.append(receive);
  slot.state.store(done ? State::done : State::paired, std::memory_order_release);
  partner.state.store(done ? State::done : State::paired, std::memory_order_release);
  world_.unpin(owner);
  return moved;
}

/// Copies a little of what this rank may receive.
void ThreadCommunicator::copy_part(Lock& lock) {
  for (i64 left = part_bytes; left > 0 && ready_queue_.ready.first != nullptr && !world_.aborted();)
    left -= std::max(copy(*ready_queue_.ready.first, left, lock), message_cost_bytes);
}

i64 ThreadCommunicator::finish(Slot& slot, Ticket ticket) {
  const i64 moved = slot.moved;
  slot.partner = nullptr;
  slot.state.store(State::free, std::memory_order_relaxed);
  slots_.close(ticket);
  return moved;
}

i64 ThreadCommunicator::wait(Ticket ticket) {
  Slot& slot = slots_.of(ticket);
  check_abort();
  if (slot.state.load(std::memory_order_acquire) != State::done) {
    Lock lock(world_.lock());
    WaitWatch watch(world_.options());
    while (slot.state.load(std::memory_order_relaxed) != State::done) {
      if (world_.aborted()) world_.raise(job_rank_, lock);
      if (slot.state.load(std::memory_order_relaxed) == State::paired) {
        copy(slot, all_bytes, lock);
      } else if (ready_queue_.ready.first != nullptr) {
        copy_part(lock);
      } else if (!world_.sleep(job_rank_, lock, watch.next_look()) && !world_.aborted()) {
        lock.unlock();  // the caller's function may take its time
        const WaitState state = watch.look();
        lock.lock();
        if (world_.aborted() || slot.state.load(std::memory_order_relaxed) != State::open) continue;
        if (state == WaitState::interrupted) {
          world_.abort_locked(interrupted_fault(slot.message, job_rank_), job_rank_, lock);
          world_.raise(job_rank_, lock);
        }
        if (state == WaitState::late) report_late(slot, lock);
      }
    }
  }
  return finish(slot, ticket);
}

std::optional<i64> ThreadCommunicator::test(Ticket ticket) {
  Slot& slot = slots_.of(ticket);
  check_abort();
  if (slot.state.load(std::memory_order_acquire) != State::done) {
    Lock lock(world_.lock());
    if (world_.aborted()) world_.raise(job_rank_, lock);
    if (slot.state.load(std::memory_order_relaxed) == State::paired) copy(slot, all_bytes, lock);
    if (slot.state.load(std::memory_order_relaxed) != State::done) return std::nullopt;
  }
  return finish(slot, ticket);
}

void ThreadCommunicator::progress() {
  check_abort();
  if (!ready_queue_.any.load(std::memory_order_relaxed)) return;
  Lock lock(world_.lock(), std::try_to_lock);
  if (lock.owns_lock()) copy_part(lock);
}

void ThreadCommunicator::check_abort() {
  if (!world_.aborted()) return;
  Lock lock(world_.lock());
  world_.raise(job_rank_, lock);
}

/// Names every peer that this rank still misses in the same operation, and the ranks that wait for no peer:
/// among these is the cause when the peers are themselves held up.
void ThreadCommunicator::report_late(const Slot& slot, Lock& lock) {
  std::vector<int> missing;
  slots_.for_each_open([&](const Slot& other) {
    if (other.state.load(std::memory_order_relaxed) == State::open &&
        other.message.tick == slot.message.tick &&
        std::string_view(other.message.operation) == slot.message.operation)
      missing.push_back(job_rank(other.message.peer));
  });
  std::vector<int> busy = world_.busy_ranks();
  std::erase(busy, job_rank_);
  const std::string hint = busy.empty() ? "" : fmt::format(" (not waiting: {})", list_ranks(std::move(busy)));
  world_.abort_locked(
      late_fault(slot.message, job_rank_, std::move(missing), world_.options().watchdog_s, hint), job_rank_,
      lock);
  world_.raise(job_rank_, lock);
}

std::unique_ptr<Communicator> ThreadCommunicator::group(const std::vector<int>& ranks) {
  check_group(*this, ranks);
  const i64 sequence = groups_++;
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  if (ranks.size() < 2 || mine == ranks.end()) return nullptr;
  std::vector<int> job_ranks;
  for (const int rank : ranks) job_ranks.push_back(job_rank(rank));
  return make_thread_communicator(world_, world_.group_state_of(group_.get(), sequence, job_ranks),
                                  static_cast<int>(mine - ranks.begin()));
}

}  // namespace

std::unique_ptr<Communicator> make_thread_communicator(World& world, std::shared_ptr<GroupState> group_state,
                                                       int rank) {
  return std::make_unique<ThreadCommunicator>(world, std::move(group_state), rank);
}

}  // namespace usp::comm
