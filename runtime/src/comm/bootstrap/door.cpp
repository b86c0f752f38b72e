// SPDX-License-Identifier: Apache-2.0
#include "door.hpp"

#include "usp/comm/errors.hpp"

#include <algorithm>
#include <poll.h>
#include <span>

namespace usp::comm {
namespace {

/// Callers beyond the ranks of the job that have not proved anything yet; the eldest is dropped then.
constexpr std::size_t max_strangers = 256;
/// Connections taken in between two looks at those that are there, so that each of them is heard.
constexpr int max_accepted = 64;
/// What a caller has from its connection to its proof.
constexpr double caller_s = 20;
/// Refusals of one kind that are told in the story of those who did not come.
constexpr std::size_t max_refusals = 4;

void wait_for(const Socket& socket, short events, int timeout_ms) {
  pollfd one{socket.descriptor(), events, 0};
  ::poll(&one, 1, timeout_ms);
}

/// Sends without waiting: what a fresh connection has room for. False when it had none.
[[nodiscard]] bool send_at_once(Socket& socket, const void* data, std::size_t bytes) {
  const iovec part{const_cast<void*>(data), bytes};
  return socket.send(&part, 1) == static_cast<i64>(bytes);
}

}  // namespace

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
  const Reply reply = refusal_reply(why);
  (void)send_at_once(socket, &reply, sizeof reply);
  // A connection that closes with bytes unread takes back what was sent over it.
  std::array<std::byte, 256> unread;
  const iovec part{unread.data(), unread.size()};
  (void)socket.receive(&part, 1);
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

Door::Door(const Socket& listener, const DoorRules& rules)
    : listener_(listener),
      rules_(rules),
      max_callers_(max_strangers + static_cast<std::size_t>(rules.size)),
      known_(static_cast<std::size_t>(rules.size)) {}

/// Until somebody comes, says something or leaves.
void Door::wait(const Deadline& deadline, const std::vector<Socket>& connected) const {
  std::vector<pollfd> watched{{listener_.descriptor(), POLLIN, 0}};
  for (const Caller& caller : callers_) watched.push_back({caller.socket.descriptor(), POLLIN, 0});
  const std::size_t members = watched.size();
  // A member that left without a word is gone. One that said something has met all, so that all will be here
  // in a moment; where it failed meanwhile, its words, which are read then, tell why.
  for (const Socket& socket : connected)
    watched.push_back({socket.has_unread() ? -1 : socket.descriptor(), POLLRDHUP, 0});
  ::poll(watched.data(), watched.size(), deadline.left_ms(100));
  for (std::size_t i = members; i < watched.size(); ++i)
    if (watched[i].fd >= 0 && watched[i].revents != 0 && !connected[i - members].has_unread())
      report_gone(rules_.mine, static_cast<int>(i - members));
}

void Door::turn_away(Caller& caller, const Refusal& refusal) {
  std::vector<std::string>& told = refusals_[refusal.kind];
  if (told.size() < max_refusals && std::find(told.begin(), told.end(), refusal.why) == told.end())
    told.push_back(refusal.why);
  refuse(caller.socket, refusal.why);
  caller.over = true;
}

std::string Door::refusals() const {
  std::string text;
  for (const auto& [kind, told] : refusals_)
    for (const std::string& why : told) text += "; refused: " + why;
  return text;
}

/// Why a rank is not of this job by what it says; none when it may be.
std::optional<Door::Refusal> Door::mismatch(const Hello& hello) const {
  const std::string rank = "rank " + std::to_string(hello.rank);
  const std::string mine = "rank " + std::to_string(rules_.mine);
  if (hello.size != rules_.size)
    return Refusal{Kind::size, rank + " was started with WORLD_SIZE " + std::to_string(hello.size) + ", " +
                                   mine + " with " + std::to_string(rules_.size) + "; start all ranks alike"};
  if (hello.digest != rules_.digest)
    return Refusal{Kind::job, rank + " is of another job than " + mine +
                                  "; give each job a MASTER_PORT or USP_MASTER_PORT of its own"};
  if ((hello.secured != 0) != rules_.key.secured())
    return Refusal{Kind::secret, (hello.secured != 0 ? mine : rank) + " has no secret, but " +
                                     (hello.secured != 0 ? rank : mine) +
                                     " has one; give all ranks the same USP_JOB_TOKEN, or torchrun's "
                                     "--rdzv-id"};
  return std::nullopt;
}

/// Why a rank that proved to be of this job cannot come in; none when it can.
std::optional<Door::Refusal> Door::taken(const Hello& hello) const {
  if (hello.rank >= rules_.first && !knows(hello.rank)) return std::nullopt;
  return Refusal{Kind::taken, "rank " + std::to_string(hello.rank) +
                                  " was given twice; each process needs a RANK of its own, from 0 to " +
                                  std::to_string(rules_.size - 1)};
}

/// The hello of a caller is whole, or is none.
void Door::greet(Caller& caller) {
  const std::span<const std::byte> heard(caller.heard.data(), caller.count);
  switch (greeting_of(heard)) {
    case Greeting::part:
      return;
    case Greeting::stranger:
      caller.over = true;
      return;
    case Greeting::other_version:
      return turn_away(caller, {Kind::version, "a rank runs another version of usp than rank " +
                                                   std::to_string(rules_.mine) + "; install one"});
    case Greeting::whole:
      break;
  }
  caller.hello = parse_hello(heard);
  caller.count = 0;
  if (!caller.hello) {
    caller.over = true;
    return;
  }
  if (const std::optional<Refusal> refusal = mismatch(*caller.hello)) return turn_away(caller, *refusal);
  caller.nonce = fresh_nonce();
  const Reply challenge = welcome(rules_.key, caller.nonce);
  caller.over = !send_at_once(caller.socket, &challenge, sizeof challenge);
}

/// Whether the caller, whose proof is whole, is in.
bool Door::prove(Caller& caller) {
  const Meeting meeting = meeting_of(*caller.hello, rules_.mine, caller.nonce);
  Proof proof;
  std::copy_n(caller.heard.begin(), proof.size(), proof.begin());
  std::optional<Refusal> refusal = taken(*caller.hello);
  if (!same(proof, rules_.key.guest_proof(meeting)))
    refusal = Refusal{Kind::unproved, "rank " + std::to_string(caller.hello->rank) +
                                          " did not prove that it knows the secret of rank " +
                                          std::to_string(rules_.mine) +
                                          "; give all ranks the same USP_JOB_TOKEN, or torchrun's --rdzv-id"};
  if (refusal) {
    turn_away(caller, *refusal);
    return false;
  }
  const Reply answer = welcome(rules_.key, rules_.key.host_proof(meeting));
  caller.over = true;
  return send_at_once(caller.socket, &answer, sizeof answer);
}

/// Hears one caller; whether it is in.
bool Door::serve(Caller& caller) {
  const std::size_t wanted = caller.hello ? sizeof(Proof) : sizeof(Hello);
  const iovec part{caller.heard.data() + caller.count, wanted - caller.count};
  const i64 moved = caller.socket.receive(&part, 1);
  if (moved < 0 || caller.deadline.over()) {
    caller.over = true;
    return false;
  }
  caller.count += static_cast<std::size_t>(moved);
  if (!caller.hello) {
    greet(caller);
    return false;
  }
  return caller.count == sizeof(Proof) && prove(caller);
}

void Door::accept_some() {
  for (int i = 0; i < max_accepted; ++i) {
    Socket socket = accept_from(listener_);
    if (!socket.is_open()) return;
    callers_.emplace_back(std::move(socket), caller_s);
    if (callers_.size() > max_callers_) callers_.pop_front();
  }
}

std::optional<Door::Newcomer> Door::next(const Deadline& deadline, const std::vector<Socket>& connected) {
  while (true) {
    for (auto caller = callers_.begin(); caller != callers_.end();) {
      if (serve(*caller)) {
        Newcomer newcomer{*caller->hello, std::move(caller->socket)};
        callers_.erase(caller);
        known_[static_cast<std::size_t>(newcomer.hello.rank)] = true;
        return newcomer;
      }
      caller = caller->over ? callers_.erase(caller) : std::next(caller);
    }
    if (deadline.over()) return std::nullopt;
    wait(deadline, connected);
    accept_some();
  }
}

}  // namespace usp::comm
