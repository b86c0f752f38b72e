// SPDX-License-Identifier: Apache-2.0
#include "usp/comm/threads.hpp"

#include "box_walk.hpp"
#include "p2p_collectives.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

namespace usp {
namespace {

/// How often a blocked rank looks whether the job was ended; arrivals wake it at once.
constexpr std::chrono::milliseconds abort_poll{20};

/// Whether the job was ended and why; shared by all groups of a job.
class AbortState {
 public:
  void set(const CommunicationFault& fault) {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    fault_ = fault;
    aborted_.store(true, std::memory_order_release);
  }
  void check() {
    if (!aborted_.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(mutex_);
    throw CommunicationError(fault_);
  }

 private:
  std::atomic<bool> aborted_{false};
  std::mutex mutex_;
  CommunicationFault fault_;
};

enum class SlotState : std::uint8_t { free, open, copying, done };

struct Slot {
  Message message;
  SlotState state = SlotState::free;
  bool unequal = false;  ///< the two ends disagree on the size
};

/// What the ranks of one group share.
struct Group {
  Group(std::vector<int> ids, const CommOptions& o, std::shared_ptr<AbortState> a)
      : options(o), abort(std::move(a)), job_ranks(std::move(ids)), ranks(job_ranks.size()) {}
  [[nodiscard]] int size() const { return static_cast<int>(ranks.size()); }

  struct Rank {
    std::condition_variable arrived;
    std::vector<Slot> slots;
    std::vector<Ticket> open;  ///< posted and not yet met, oldest first
    std::vector<Ticket> free;
    i64 groups_made = 0;
  };
  const CommOptions options;
  const std::shared_ptr<AbortState> abort;
  const std::vector<int> job_ranks;  ///< numbers in the whole job
  std::mutex mutex;
  std::vector<Rank> ranks;
  std::map<i64, std::shared_ptr<Group>> groups;  ///< by the order in which every rank makes them
};

class ThreadCommunicator final : public P2pCommunicator {
 public:
  ThreadCommunicator(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {
    traffic_.reset(0, size());
  }

  [[nodiscard]] const char* name() const override { return "threads"; }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return group_->size(); }
  [[nodiscard]] Traffic& traffic() override { return traffic_; }

  void reserve(i64 messages, i64) override {
    const std::lock_guard lock(group_->mutex);
    const auto count = static_cast<std::size_t>(messages);
    mine().slots.reserve(count);
    mine().open.reserve(count);
    mine().free.reserve(count);
  }

  void post(const Message* messages, i64 count, Ticket* tickets) override {
    group_->abort->check();
    for (i64 i = 0; i < count; ++i) tickets[i] = post_one(messages[i]);
  }

  void wait(Ticket ticket) override {
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::duration<double>(group_->options.watchdog_s);
    std::unique_lock lock(group_->mutex);
    while (slot(ticket).state != SlotState::done) {
      group_->abort->check();
      mine().arrived.wait_for(lock, abort_poll);
      if (slot(ticket).state != SlotState::done && std::chrono::steady_clock::now() > deadline) {
        const Message late = slot(ticket).message;
        lock.unlock();
        give_up(late);
      }
    }
    finish(ticket);
  }

  [[nodiscard]] bool test(Ticket ticket) override {
    group_->abort->check();
    const std::lock_guard lock(group_->mutex);
    if (slot(ticket).state != SlotState::done) return false;
    finish(ticket);
    return true;
  }

  void progress() override { group_->abort->check(); }

  [[nodiscard]] std::unique_ptr<Communicator> group(const std::vector<int>& ranks) override {
    std::shared_ptr<Group> made;
    int place = -1;
    {
      const std::lock_guard lock(group_->mutex);
      const i64 key = mine().groups_made++;
      if (ranks.size() < 2) return nullptr;
      std::shared_ptr<Group>& entry = group_->groups[key];
      std::vector<int> ids;
      for (const int r : ranks) {
        expects(r >= 0 && r < size(), "a group names a rank that does not exist");
        if (r == rank_) place = static_cast<int>(ids.size());
        ids.push_back(group_->job_ranks[static_cast<std::size_t>(r)]);
      }
      if (entry == nullptr) entry = std::make_shared<Group>(ids, group_->options, group_->abort);
      expects(entry->job_ranks == ids, "ranks make a group of different members");
      made = entry;
    }
    return place < 0 ? nullptr : std::make_unique<ThreadCommunicator>(made, place);
  }

  void abort(const CommunicationFault& fault) override { group_->abort->set(fault); }

 private:
  [[nodiscard]] Group::Rank& mine() { return group_->ranks[static_cast<std::size_t>(rank_)]; }
  [[nodiscard]] Slot& slot(Ticket ticket) { return mine().slots[static_cast<std::size_t>(ticket)]; }

  /// Whoever posts second copies, outside the lock.
  Ticket post_one(const Message& m) {
    expects(m.peer >= 0 && m.peer < size() && m.peer != rank_, "a message to a rank that is no peer");
    Message other;
    Ticket ticket = -1, mate = -1;
    {
      const std::lock_guard lock(group_->mutex);
      ticket = new_slot(m);
      mate = take_mate(m);
      if (mate < 0) {
        mine().open.push_back(ticket);
        return ticket;
      }
      other = peer(m).slots[static_cast<std::size_t>(mate)].message;
      slot(ticket).state = SlotState::copying;
    }
    const bool unequal = m.bytes() != other.bytes();
    if (!unequal) copy_boxes(m.send ? m : other, m.send ? other : m);
    const std::lock_guard lock(group_->mutex);
    complete(slot(ticket), unequal);
    complete(peer(m).slots[static_cast<std::size_t>(mate)], unequal);
    peer(m).arrived.notify_one();
    return ticket;
  }
  [[nodiscard]] Group::Rank& peer(const Message& m) {
    return group_->ranks[static_cast<std::size_t>(m.peer)];
  }
  static void complete(Slot& s, bool unequal) {
    s.unequal = unequal;
    s.state = SlotState::done;
  }
  Ticket new_slot(const Message& m) {
    Group::Rank& me = mine();
    Ticket ticket = static_cast<Ticket>(me.slots.size());
    if (me.free.empty()) {
      me.slots.emplace_back();
    } else {
      ticket = me.free.back();
      me.free.pop_back();
    }
    slot(ticket).message = m;
    slot(ticket).state = SlotState::open;
    slot(ticket).unequal = false;
    return ticket;
  }
  /// The peer's oldest open message that this one meets, taken off its list; -1: none.
  Ticket take_mate(const Message& m) {
    Group::Rank& other = peer(m);
    for (std::size_t i = 0; i < other.open.size(); ++i) {
      Slot& s = other.slots[static_cast<std::size_t>(other.open[i])];
      if (s.message.peer != rank_ || s.message.send == m.send || s.message.tag != m.tag) continue;
      s.state = SlotState::copying;
      const Ticket mate = other.open[i];
      other.open.erase(other.open.begin() + static_cast<std::ptrdiff_t>(i));
      return mate;
    }
    return -1;
  }

  /// Counts what the copy moved and frees the slot; the lock is held.
  void finish(Ticket ticket) {
    Slot& s = slot(ticket);
    if (s.unequal) {
      CommunicationFault fault = fault_of(s.message);
      fault.story = "rank " + std::to_string(job_rank(rank_)) + (s.message.send ? " sent " : " expected ") +
                    std::to_string(s.message.bytes()) + " bytes in " + s.message.operation + " (tick " +
                    std::to_string(s.message.tick) + "), and rank " +
                    std::to_string(job_rank(s.message.peer)) + (s.message.send ? " expected" : " sent") +
                    " another number; the ranks run different schedules";
      group_->abort->set(fault);
      throw CommunicationError(fault);
    }
    if (s.message.tick >= 0)
      traffic_.count(s.message.tick, s.message.peer, s.message.send, s.message.bytes());
    s.state = SlotState::free;
    mine().free.push_back(ticket);
  }
  [[nodiscard]] int job_rank(int r) const { return group_->job_ranks[static_cast<std::size_t>(r)]; }
  [[nodiscard]] CommunicationFault fault_of(const Message& m) const {
    return {m.operation, m.tick, job_rank(rank_), {job_rank(m.peer)}, ""};
  }

  [[noreturn]] void give_up(const Message& late) {
    CommunicationFault fault = fault_of(late);
    fault.story = "rank " + std::to_string(fault.rank) + " waited " +
                  std::to_string(group_->options.watchdog_s) + " s in " + fault.operation +
                  (fault.tick >= 0 ? " (tick " + std::to_string(fault.tick) + ")" : std::string()) +
                  " for rank " + std::to_string(fault.missing.front()) +
                  ", which did not arrive; the job ends";
    group_->abort->set(fault);
    group_->abort->check();
    throw CommunicationError(fault);
  }

  const std::shared_ptr<Group> group_;
  const int rank_;
  Traffic traffic_;
};

}  // namespace

void run_threads(int ranks, const CommOptions& options, const std::function<void(Communicator&)>& body) {
  expects(ranks >= 1, "a job needs a rank");
  std::vector<int> ids(static_cast<std::size_t>(ranks));
  for (int p = 0; p < ranks; ++p) ids[static_cast<std::size_t>(p)] = p;
  const auto abort = std::make_shared<AbortState>();
  const auto group = std::make_shared<Group>(ids, options, abort);
  std::mutex mutex;
  std::exception_ptr first;
  const auto run = [&](int rank) {
    ThreadCommunicator communicator(group, rank);
    try {
      body(communicator);
    } catch (const std::exception& e) {
      {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
      abort->set({"", -1, rank, {rank}, "rank " + std::to_string(rank) + " failed: " + e.what()});
    }
  };
  std::vector<std::thread> threads;
  for (int p = 1; p < ranks; ++p) threads.emplace_back(run, p);
  run(0);
  for (std::thread& t : threads) t.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace usp
