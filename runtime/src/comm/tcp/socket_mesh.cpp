// SPDX-License-Identifier: Apache-2.0
#include "socket_mesh.hpp"

#include "../failure/backoff.hpp"
#include "../failure/faults.hpp"
#include "../failure/wait_watch.hpp"

#include <fmt/format.h>

#include <numeric>
#include <string_view>
#include <thread>

namespace usp::comm {
namespace {

/// What one call of progress() moves per peer, so that a kernel's tile is not held up: some 10 us.
constexpr i64 progress_bytes = i64{1} << 17;
/// What a wait moves per peer before it turns to the next.
constexpr i64 wait_bytes = i64{1} << 22;
/// Parts of a payload: a failure of the job can be sent between two of them.
constexpr i64 max_part = i64{1} << 18;
/// Looks before a wait sleeps: most answers come at once, but ranks that compute need the core.
constexpr int looks = 100;
/// A closed connection carries no reason. The rank that ended the job broadcasts it over other connections:
/// a rank waits for that report this long before it names the lost peer.
constexpr double lost_patience_s = 1;
/// The end of a job waits no longer than that for peers that send on and on.
constexpr double max_leave_s = 60;
/// How long a wait sleeps at most before it looks at the clock.
constexpr int sleep_ms = 100;

/// False where the job failed meanwhile.
[[nodiscard]] bool leave_without_fault(SocketMesh& mesh, double limit_s) {
  try {
    (void)mesh.leave(limit_s);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

SocketMesh::SocketMesh(std::vector<Socket> sockets, int rank, const CommOptions& options)
    : rank_(rank), options_(options), watched_(sockets.size()) {
  const i64 part = std::clamp(options.chunk_bytes, i64{1}, max_part);
  for (std::size_t peer = 0; peer < sockets.size(); ++peer)
    links_.emplace_back(std::move(sockets[peer]), rank, static_cast<int>(peer), slots_, part);
}

SocketMesh::~SocketMesh() {
  // A failure that the wait finds is still sent to the others.
  if (!leave_without_fault(*this, aborted() ? grace_s : options_.leave_s))
    (void)leave_without_fault(*this, grace_s);
}

void SocketMesh::reserve(i64 messages) {
  slots_.grow(messages);
  for (SocketLink& link : links_) link.reserve(slots_.size());
}

Ticket SocketMesh::post(const Message& message, int peer, std::uint64_t context) {
  const Ticket ticket = slots_.open(message, peer, context);
  SocketSlot& slot = slots_.of(ticket);
  if (slot.bytes == 0) return ticket;
  try {
    links_[static_cast<std::size_t>(peer)].post(slot);
  } catch (const CommunicationError& error) {
    fail(error.fault());
  }
  return ticket;
}

void SocketMesh::flush() {
  for (SocketLink& link : links_) link.write(progress_bytes);
}

/// Moves what can move, `limit` bytes per peer; waits for that so long.
void SocketMesh::advance(i64 limit, int timeout_ms) {
  for (std::size_t peer = 0; peer < links_.size(); ++peer) {
    const short events = links_[peer].has_to_write() ? POLLIN | POLLOUT : POLLIN;
    watched_[peer] = {links_[peer].descriptor(), events, 0};  // a closed one is -1, which poll() skips
  }
  if (lost_ && timeout_ms > 0) timeout_ms = lost_->patience.left_ms(timeout_ms);
  const int ready = ::poll(watched_.data(), watched_.size(), timeout_ms);
  for (std::size_t peer = 0; ready > 0 && peer < links_.size(); ++peer)
    if (watched_[peer].fd >= 0 && watched_[peer].revents != 0)
      move(links_[peer], static_cast<int>(peer), watched_[peer].revents, limit);
  report_lost();
}

void SocketMesh::move(SocketLink& link, int peer, short events, i64 limit) {
  try {
    if ((events & ~POLLOUT) != 0) link.read(limit);
    if (const std::optional<FailureFrame> failure_frame = link.take_failure())
      receive_failure(*failure_frame, peer);
    link.write(limit);
  } catch (const CommunicationError& error) {
    publish_failure(error.fault(), ExitCode::environment);
  }
  if (!link.is_open() && !link.peer_closed() && !aborted()) mark_lost(peer);
}

/// A connection closed before its peer was done.
void SocketMesh::mark_lost(int peer) {
  if (!lost_) lost_ = Lost{peer, Deadline(lost_patience_s)};
}

/// The peer that disconnected, once no other report arrived in time or can arrive.
void SocketMesh::report_lost() {
  if (!lost_ || aborted() || !(lost_->patience.over() || all_left())) return;
  publish_failure({"run",
                   -1,
                   rank_,
                   {lost_->peer},
                   fmt::format("rank {} has gone: its connections closed before it was done, so its process "
                               "ended or its host is out of reach; see what it printed",
                               lost_->peer)},
                  ExitCode::environment);
}

/// A notice arrived.
void SocketMesh::receive_failure(const FailureFrame& failure_frame, int sender) {
  JobFailure failure = unpack(failure_frame, size(), sender);
  stop();
  if (!failure_is_final_ && (!failure_ || failure.origin < failure_->origin)) failure_ = std::move(failure);
}

/// Nothing touches a message's memory any more.
void SocketMesh::stop() {
  for (SocketLink& link : links_) link.stop();
}

void SocketMesh::broadcast_failure(const CommunicationFault& fault, ExitCode exit_code) {
  stop();
  advance(wait_bytes, 0);  // a failure received earlier takes precedence
  publish_failure(fault, exit_code);
}

void SocketMesh::publish_failure(const CommunicationFault& fault, ExitCode exit_code) {
  if (aborted()) return;
  const FailureFrame failure_frame = pack({fault, exit_code, rank_});
  forwarded_origin_ = rank_;
  failure_ = unpack(failure_frame, size(), rank_);  // every rank reports the same text, cut at the same place
  stop();
  for (SocketLink& link : links_) {
    if (link.is_open()) link.send_failure(failure_frame);
    link.write(wait_bytes);
  }
}

void SocketMesh::check() {
  if (aborted()) raise();
}

void SocketMesh::raise() {
  const Deadline deadline(crossing_s);
  while (!failure_is_final_ && !deadline.over()) advance(wait_bytes, 1);
  failure_is_final_ = true;
  throw CommunicationError(failure_->fault);
}

void SocketMesh::fail(const CommunicationFault& fault) {
  publish_failure(fault, ExitCode::environment);
  raise();
}

void SocketMesh::poll() {
  advance(progress_bytes, 0);
  check();
}

void SocketMesh::wait(const SocketSlot& slot) {
  check();
  const SocketLink& link = links_[static_cast<std::size_t>(slot.peer)];
  WaitWatch watch(options_);
  for (int look = 0; slot.state != SocketSlot::State::done; ++look) {
    const i64 before = link.payload();
    advance(wait_bytes, look < looks ? 0 : sleep_ms);
    check();
    if (link.payload() != before) {
      watch.restart();
      look = 0;
    } else if (slot.state != SocketSlot::State::done) {
      if (link.peer_closed()) report_left(slot);
      const WaitState state = watch.look();
      if (state == WaitState::interrupted) fail(interrupted_fault(slot.message, rank_));
      if (state == WaitState::late && !lost_) report_late(slot);
    }
    if (look < looks && !yield_briefly()) look = looks;
  }
}

/// The peer is done, without its end of this message.
void SocketMesh::report_left(const SocketSlot& slot) {
  fail({slot.message.operation,
        slot.message.tick,
        rank_,
        {slot.peer},
        fmt::format(
            "rank {} left the job, but rank {} waits for it in {}; the ranks do not follow the same schedule",
            slot.peer, rank_, name_operation(slot.message.operation, slot.message.tick))});
}

/// Names every peer that this rank still misses in the same operation.
void SocketMesh::report_late(const SocketSlot& slot) {
  std::vector<int> missing;
  slots_.for_each_open([&](const SocketSlot& other) {
    if (other.state == SocketSlot::State::open && other.context == slot.context &&
        other.message.tick == slot.message.tick &&
        std::string_view(other.message.operation) == slot.message.operation)
      missing.push_back(other.peer);
  });
  fail(late_fault(slot.message, rank_, std::move(missing), options_.watchdog_s, ""));
}

bool SocketMesh::all_left() const {
  return std::all_of(links_.begin(), links_.end(),
                     [](const SocketLink& link) { return link.peer_closed() || !link.is_open(); });
}

/// Every rank forwards the report to every other, so that no closing connection hides it.
void SocketMesh::send_trailers() {
  const bool untold = failure_ && forwarded_origin_ != failure_->origin;
  for (SocketLink& link : links_) {
    if (!link.is_open()) continue;
    if (untold) link.send_failure(pack(*failure_));
    if (!sent_shutdown_) link.send_shutdown();
  }
  if (untold) forwarded_origin_ = failure_->origin;
  sent_shutdown_ = true;
}

bool SocketMesh::is_done() const {
  const auto unsaid = [](const SocketLink& link) { return link.has_to_write(); };
  return all_left() && std::none_of(links_.begin(), links_.end(), unsaid) && (!lost_ || aborted());
}

i64 SocketMesh::moved() const {
  return std::accumulate(links_.begin(), links_.end(), i64{0},
                         [](i64 sum, const SocketLink& link) { return sum + link.moved(); });
}

bool SocketMesh::leave(double limit_s) {
  if (left_) return true;
  send_trailers();
  const Deadline end(std::max(limit_s, max_leave_s));
  Deadline patience(limit_s);
  i64 before = moved();
  while (!is_done() && !patience.over() && !end.over()) {
    if (options_.interrupted && options_.interrupted()) break;
    const bool was_over = aborted();
    advance(wait_bytes, patience.left_ms(sleep_ms));
    if (aborted() && !was_over) raise();
    if (aborted())
      for (SocketLink& link : links_) link.end_writing();
    if (moved() != before) patience = Deadline(limit_s);
    before = moved();
  }
  left_ = true;
  return all_left();
}

}  // namespace usp::comm
