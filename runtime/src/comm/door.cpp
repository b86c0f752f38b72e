// SPDX-License-Identifier: Apache-2.0
#include "door.hpp"

#include "usp/comm/errors.hpp"

#include <algorithm>
#include <poll.h>

namespace usp::comm {
namespace {

/// More callers than that have said nothing yet: the eldest is dropped.
constexpr std::size_t most_callers = 256;

void wait_for(const Socket& socket, short events, int timeout_ms) {
  pollfd one{socket.descriptor(), events, 0};
  ::poll(&one, 1, timeout_ms);
}

}  // namespace

Deadline::Deadline(double limit_s)
    : end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                              std::chrono::duration<double>(std::min(limit_s, 1e9)))) {}

int Deadline::left_ms(int most_ms) const {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end_ - Clock::now()).count();
  return static_cast<int>(std::clamp<i64>(left, 1, most_ms));
}

bool send_whole(Socket& socket, const void* data, i64 bytes, const Deadline& deadline) {
  auto* at = static_cast<std::byte*>(const_cast<void*>(data));
  while (bytes > 0 && !deadline.over()) {
    const iovec part{at, static_cast<std::size_t>(bytes)};
    const i64 moved = socket.send(&part, 1);
    if (moved < 0) return false;
    at += moved;
    bytes -= moved;
    if (moved == 0) wait_for(socket, POLLOUT, deadline.left_ms(100));
  }
  return bytes == 0;
}

Heard receive_whole(Socket& socket, void* data, i64 bytes, const Deadline& deadline) {
  auto* at = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const iovec part{at, static_cast<std::size_t>(bytes)};
    const i64 moved = socket.receive(&part, 1);
    if (moved < 0) return Heard::closed;
    at += moved;
    bytes -= moved;
    if (moved > 0) continue;
    if (deadline.over()) return Heard::late;
    wait_for(socket, POLLIN, deadline.left_ms(100));
  }
  return Heard::all;
}

void refuse(Socket& socket, const std::string& why) {
  Answer answer;
  why.copy(answer.refusal.data(), answer.refusal.size() - 1);
  (void)send_whole(socket, &answer, sizeof answer, Deadline(1));
}

void report_gone(int mine, int peer) {
  throw CommunicationError({"start",
                            -1,
                            mine,
                            {peer},
                            "rank " + std::to_string(peer) +
                                " left while the ranks met: its connection to rank " + std::to_string(mine) +
                                " closed; see what it printed"});
}

Door::Door(const Socket& listener, int mine, int first, int size, std::uint64_t digest)
    : listener_(listener),
      mine_(mine),
      first_(first),
      size_(size),
      digest_(digest),
      known_(static_cast<std::size_t>(size)) {}

/// Until somebody comes, says something or leaves.
void Door::wait(const Deadline& deadline, const std::vector<Socket>& connected) const {
  std::vector<pollfd> watched{{listener_.descriptor(), POLLIN, 0}};
  for (const Caller& caller : callers_) watched.push_back({caller.socket.descriptor(), POLLIN, 0});
  const std::size_t members = watched.size();
  // Those who are in may have begun to send; only their leaving matters here.
  for (const Socket& socket : connected) watched.push_back({socket.descriptor(), POLLRDHUP, 0});
  ::poll(watched.data(), watched.size(), deadline.left_ms(100));
  for (std::size_t i = members; i < watched.size(); ++i)
    if (watched[i].fd >= 0 && watched[i].revents != 0) report_gone(mine_, static_cast<int>(i - members));
}

void Door::listen(Caller& caller) {
  const iovec part{reinterpret_cast<std::byte*>(&caller.hello) + caller.heard,
                   sizeof(Hello) - static_cast<std::size_t>(caller.heard)};
  const i64 moved = caller.socket.receive(&part, 1);
  caller.gone = moved < 0;
  if (moved > 0) caller.heard += moved;
}

/// Why a member of some job cannot come in; empty when it can.
std::string Door::refusal(const Hello& hello) const {
  const std::string rank = "rank " + std::to_string(hello.rank);
  if (hello.version != hello_version)
    return rank + " runs another version of usp than rank " + std::to_string(mine_) + "; install one";
  if (hello.size != size_)
    return rank + " was started with WORLD_SIZE " + std::to_string(hello.size) + ", rank " +
           std::to_string(mine_) + " with " + std::to_string(size_) + "; start all ranks alike";
  if (hello.digest != digest_)
    return rank + " is of another job than rank " + std::to_string(mine_) +
           "; give each job a MASTER_PORT or USP_MASTER_PORT of its own";
  if (hello.rank < first_ || hello.rank >= size_ || knows(hello.rank))
    return rank + " was given twice; each process needs a RANK of its own, from 0 to " +
           std::to_string(size_ - 1);
  return "";
}

std::optional<Door::Newcomer> Door::next(const Deadline& deadline, const std::vector<Socket>& connected) {
  while (true) {
    for (auto caller = callers_.begin(); caller != callers_.end();) {
      listen(*caller);
      const bool whole = caller->heard == static_cast<i64>(sizeof(Hello));
      if (!whole && !caller->gone) {
        ++caller;
        continue;
      }
      Newcomer newcomer{caller->hello, std::move(caller->socket)};
      caller = callers_.erase(caller);
      if (!whole || newcomer.hello.magic != hello_magic) continue;
      const std::string why = refusal(newcomer.hello);
      if (why.empty()) {
        known_[static_cast<std::size_t>(newcomer.hello.rank)] = true;
        return newcomer;
      }
      refusals_ += "; refused: " + why;
      refuse(newcomer.socket, why);
    }
    if (deadline.over()) return std::nullopt;
    wait(deadline, connected);
    for (Socket socket = accept_from(listener_); socket.is_open(); socket = accept_from(listener_)) {
      callers_.emplace_back().socket = std::move(socket);
      if (callers_.size() > most_callers) callers_.pop_front();
    }
  }
}

}  // namespace usp::comm
