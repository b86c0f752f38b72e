// SPDX-License-Identifier: Apache-2.0
#include "stall_watch.hpp"

#include "../failure/backoff.hpp"
#include "../failure/deadline.hpp"
#include "../failure/faults.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace usp::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto look_interval = std::chrono::milliseconds(50);
/// How long a rank that heard of a failure waits for its report.
constexpr double report_s = 1;
constexpr auto release_interval = std::chrono::milliseconds(1);

// What a stream awaits, in one word: mark of the watch, operation (from 1 on), peer, tick.
constexpr Flag mark = Flag{1} << 31;
constexpr int operation_shift = 28, peer_shift = 20;
constexpr Flag max_operation = 7, max_peer = 255, max_tick = (Flag{1} << peer_shift) - 1;

}  // namespace

StallWatch::StallWatch(Communicator& control, SharedFlags& flags, int device, int streams)
    : control_(control),
      flags_(flags),
      options_(control.options()),
      rank_(control.rank()),
      words_([&] {
        const device::DeviceScope scope(device);
        return device::PinnedBuffer(static_cast<i64>((static_cast<std::size_t>(streams) + 2) * sizeof(Flag)));
      }()),
      seen_(static_cast<std::size_t>(streams)) {
  expects(control.size() <= static_cast<int>(max_peer) + 1, "more ranks than a watch can name");
  std::fill_n(words(), seen_.size() + 2, Flag{0});
  thread_ = std::thread([this] { run(); });
}

StallWatch::~StallWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stops_.notify_all();
  thread_.join();
}

/// Literals of few places; more than a word can name share the last name.
Flag StallWatch::name_of(const Message& message) {
  auto known = std::find(operations_.begin(), operations_.end(), message.operation);
  if (known == operations_.end()) {
    const std::lock_guard lock(mutex_);
    if (operations_.size() < max_operation) operations_.push_back(message.operation);
    known = operations_.end() - 1;
  }
  const auto operation = static_cast<Flag>(known - operations_.begin()) + 1;
  return operation << operation_shift | static_cast<Flag>(message.peer) << peer_shift |
         std::min(static_cast<Flag>(std::max(message.tick, 0)), max_tick);
}

Message StallWatch::message_of(Flag name) const {
  Message message;
  message.operation = operations_[(name >> operation_shift & max_operation) - 1];
  message.peer = static_cast<int>(name >> peer_shift & max_peer);
  message.tick = static_cast<std::int32_t>(name & max_tick);
  return message;
}

void StallWatch::await(FlagOperations& operations, int stream, Flag* flag, const Message& message) {
  Flag* const word = words() + stream;
  operations.write(word, name_of(message));
  operations.await(flag);
  operations.write(flag, 0);
  operations.write(word, 0);
}

/// A copy that never comes is found by the wait before it, on its stream: the limit is for what stops after.
kernels::GateWatch StallWatch::of_kernels() const {
  return {stop_word(), static_cast<std::int64_t>(1e9 * kernel_limit_s()), fault_word()};
}

void StallWatch::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    // Streams reset the flags that they pass, and wait for others: so again and again.
    if (failed())
      flags_.set_all(rank_);
    else
      look();
    stops_.wait_for(lock, failed() ? release_interval : look_interval, [&] { return stop_; });
  }
}

/// A word that the watch has marked and finds again is still the same wait: a stream that went on has cleared
/// it.
void StallWatch::look() {
  const auto now = Clock::now();
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    std::atomic_ref<Flag> word(words()[i]);
    Flag name = word.load(std::memory_order_relaxed);
    if (name == 0) {
      seen_[i].waits = false;
    } else if ((name & mark) == 0) {
      seen_[i] = {word.compare_exchange_strong(name, name | mark), now};
    } else if (seen_[i].waits &&
               std::chrono::duration<double>(now - seen_[i].since).count() > options_.watchdog_s) {
      const Message message = message_of(name);
      return fail_locked(late_fault(message, rank_, {message.peer}, options_.watchdog_s, ""));
    }
  }
  if (const Flag word = std::atomic_ref<Flag>(*fault_word()).load(std::memory_order_acquire); word != 0) {
    CommunicationFault fault;
    fault.operation = "copy_engine";
    fault.rank = rank_;
    fault.message = fmt::format(
        "rank {}: a kernel waited for block {} of its list of keys longer than {} s after every transfer "
        "that "
        "brings it had begun; a GPU or a link has stopped",
        rank_, kernels::GateFault::of(word).block, kernel_limit_s());
    return fail_locked(fault);
  }
  if (!flags_.has_room()) return;
  for (int peer = 0; peer < control_.size(); ++peer)
    if (peer != rank_ && flags_.notice(peer).load(std::memory_order_acquire) != 0) {
      CommunicationFault fault;
      fault.operation = "copy_engine";
      fault.rank = peer;
      fault.message = fmt::format("rank {} has ended the job; its own report names the cause", peer);
      return fail_locked(fault);
    }
}

void StallWatch::fail(const CommunicationFault& fault) {
  const std::lock_guard lock(mutex_);
  if (!failed()) fail_locked(fault);
}

void StallWatch::fail_locked(const CommunicationFault& fault) {
  fault_ = fault;
  failed_.store(true, std::memory_order_release);
  std::atomic_ref<Flag>(*stop_word()).store(1, std::memory_order_release);
  if (flags_.has_room()) flags_.notice(rank_).store(1, std::memory_order_release);
}

void StallWatch::raise() {
  CommunicationFault fault;
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    fault = fault_;
    first = !std::exchange(told_, true);
  }
  if (first) {
    // Throws the report of the rank that failed first, which may be under way where a notice came before it.
    const Deadline deadline(fault.rank == rank_ ? 0 : report_s);
    Backoff backoff;
    do {
      control_.progress();
      backoff.rest();
    } while (!deadline.over());
    control_.abort(fault);
  }
  throw CommunicationError(fault);
}

}  // namespace usp::comm
