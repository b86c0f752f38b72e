// SPDX-License-Identifier: Apache-2.0
#include "acceptor.hpp"

#include "usp/comm/errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <poll.h>
#include <span>

namespace usp::comm {
namespace {

/// Callers beyond the ranks of the job that have not proved anything yet; the eldest is dropped then.
constexpr std::size_t max_unproved = 256;
/// Connections taken in between two looks at those that are there, so that each of them is heard.
constexpr int max_accepted = 64;
/// What a caller has from its connection to its proof.
constexpr double handshake_limit_s = 20;
/// Rejections of one kind that the error about missing ranks lists.
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

bool send_whole(Socket& socket, const void* data, i64 bytes, const StartWatch& watch) {
  auto* at = static_cast<std::byte*>(const_cast<void*>(data));
  while (bytes > 0 && !watch.over()) {
    watch.look();
    const iovec part{at, static_cast<std::size_t>(bytes)};
    const i64 moved = socket.send(&part, 1);
    if (moved < 0) return false;
    at += moved;
    bytes -= moved;
    if (moved == 0) wait_for(socket, POLLOUT, watch.left_ms(watch.max_sleep_ms));
  }
  return bytes == 0;
}

ReadResult receive_whole(Socket& socket, void* data, i64 bytes, const StartWatch& watch) {
  auto* at = static_cast<std::byte*>(data);
  while (bytes > 0) {
    watch.look();
    const iovec part{at, static_cast<std::size_t>(bytes)};
    const i64 moved = socket.receive(&part, 1);
    if (moved < 0) return ReadResult::closed;
    at += moved;
    bytes -= moved;
    if (moved > 0) continue;
    if (watch.over()) return ReadResult::timed_out;
    wait_for(socket, POLLIN, watch.left_ms(watch.max_sleep_ms));
  }
  return ReadResult::complete;
}

void send_rejection(Socket& socket, const std::string& why) {
  const HandshakeReply reply = rejection_reply(why);
  (void)send_at_once(socket, &reply, sizeof reply);
  // A connection that closes with bytes unread takes back what was sent over it.
  std::array<std::byte, 256> unread;
  const iovec part{unread.data(), unread.size()};
  (void)socket.receive(&part, 1);
}

void report_disconnected(int mine, int peer) {
  throw CommunicationError(
      {"start",
       -1,
       mine,
       {peer},
       fmt::format("rank {} left while the ranks met: its connection to rank {} closed; see what it printed",
                   peer, mine)});
}

Acceptor::Acceptor(const Socket& listener, const AcceptRules& rules)
    : listener_(listener),
      rules_(rules),
      max_pending_(max_unproved + static_cast<std::size_t>(rules.size)),
      joined_(static_cast<std::size_t>(rules.size)) {}

/// Until a peer connects, sends or disconnects.
void Acceptor::wait(const StartWatch& watch, const std::vector<Socket>& connected) const {
  std::vector<pollfd> watched{{listener_.descriptor(), POLLIN, 0}};
  for (const PendingPeer& pending : pending_) watched.push_back({pending.socket.descriptor(), POLLIN, 0});
  const std::size_t members = watched.size();
  // A member that left without a word is gone. One that said something has met all, so that all will be here
  // in a moment; where it failed meanwhile, its words, which are read then, tell why.
  for (const Socket& socket : connected)
    watched.push_back({socket.has_unread() ? -1 : socket.descriptor(), POLLRDHUP, 0});
  ::poll(watched.data(), watched.size(), watch.left_ms(watch.max_sleep_ms));
  for (std::size_t i = members; i < watched.size(); ++i)
    if (watched[i].fd >= 0 && watched[i].revents != 0 && !connected[i - members].has_unread())
      report_disconnected(rules_.mine, static_cast<int>(i - members));
}

void Acceptor::reject(PendingPeer& pending, const Rejection& rejection) {
  std::vector<std::string>& texts = rejections_[rejection.kind];
  if (texts.size() < max_refusals && std::find(texts.begin(), texts.end(), rejection.why) == texts.end())
    texts.push_back(rejection.why);
  send_rejection(pending.socket, rejection.why);
  pending.closed = true;
}

std::string Acceptor::rejections() const {
  std::string text;
  for (const auto& [kind, texts] : rejections_)
    for (const std::string& why : texts) text += "; refused: " + why;
  return text;
}

/// Why a rank is not of this job by what it says; none when it may be.
std::optional<Acceptor::Rejection> Acceptor::check_request(const HandshakeRequest& request) const {
  const std::string rank = fmt::format("rank {}", request.rank);
  const std::string mine = fmt::format("rank {}", rules_.mine);
  if (request.size != rules_.size)
    return Rejection{Kind::size,
                     fmt::format("{} was started with WORLD_SIZE {}, {} with {}; start all ranks alike", rank,
                                 request.size, mine, rules_.size)};
  if (request.digest != rules_.digest)
    return Rejection{
        Kind::job,
        fmt::format("{} is of another job than {}; give each job a MASTER_PORT or USP_MASTER_PORT of its own",
                    rank, mine)};
  if ((request.secured != 0) != rules_.key.secured())
    return Rejection{Kind::secret,
                     fmt::format("{} has no secret, but {} has one; give all ranks the same USP_JOB_TOKEN, "
                                 "or torchrun's --rdzv-id",
                                 request.secured != 0 ? mine : rank, request.secured != 0 ? rank : mine)};
  return std::nullopt;
}

/// Why a rank that proved to be of this job cannot come in; none when it can.
std::optional<Acceptor::Rejection> Acceptor::check_rank(const HandshakeRequest& request) const {
  if (request.rank >= rules_.first && !knows(request.rank)) return std::nullopt;
  return Rejection{Kind::taken,
                   fmt::format("rank {} was given twice; each process needs a RANK of its own, from 0 to {}",
                               request.rank, rules_.size - 1)};
}

/// The hello of a caller is whole, or is none.
void Acceptor::read_request(PendingPeer& pending) {
  const std::span<const std::byte> received(pending.received.data(), pending.count);
  switch (request_state_of(received)) {
    case RequestState::incomplete:
      return;
    case RequestState::foreign:
      pending.closed = true;
      return;
    case RequestState::other_version:
      return reject(
          pending, {Kind::version, fmt::format("a rank runs another version of usp than rank {}; install one",
                                               rules_.mine)});
    case RequestState::complete:
      break;
  }
  pending.request = parse_request(received);
  pending.count = 0;
  if (!pending.request) {
    pending.closed = true;
    return;
  }
  if (const std::optional<Rejection> rejection = check_request(*pending.request))
    return reject(pending, *rejection);
  pending.nonce = random_nonce();
  const HandshakeReply challenge = acceptance_reply(rules_.key, pending.nonce);
  pending.closed = !send_at_once(pending.socket, &challenge, sizeof challenge);
}

/// Whether the caller, whose proof is whole, is in.
bool Acceptor::check_proof(PendingPeer& pending) {
  const HandshakeContext context = context_of(*pending.request, rules_.mine, pending.nonce);
  Proof proof;
  std::copy_n(pending.received.begin(), proof.size(), proof.begin());
  std::optional<Rejection> rejection = check_rank(*pending.request);
  if (!same(proof, rules_.key.connector_proof(context)))
    rejection = Rejection{Kind::unproved,
                          fmt::format("rank {} did not prove that it knows the secret of rank {}; give all "
                                      "ranks the same USP_JOB_TOKEN, or torchrun's --rdzv-id",
                                      pending.request->rank, rules_.mine)};
  if (rejection) {
    reject(pending, *rejection);
    return false;
  }
  const HandshakeReply reply = acceptance_reply(rules_.key, rules_.key.acceptor_proof(context));
  pending.closed = true;
  return send_at_once(pending.socket, &reply, sizeof reply);
}

/// Hears one caller; whether it is in.
bool Acceptor::advance(PendingPeer& pending) {
  const std::size_t wanted = pending.request ? sizeof(Proof) : sizeof(HandshakeRequest);
  const iovec part{pending.received.data() + pending.count, wanted - pending.count};
  const i64 moved = pending.socket.receive(&part, 1);
  if (moved < 0 || pending.deadline.over()) {
    pending.closed = true;
    return false;
  }
  pending.count += static_cast<std::size_t>(moved);
  if (!pending.request) {
    read_request(pending);
    return false;
  }
  return pending.count == sizeof(Proof) && check_proof(pending);
}

void Acceptor::accept_some() {
  for (int i = 0; i < max_accepted; ++i) {
    Socket socket = accept_from(listener_);
    if (!socket.is_open()) return;
    pending_.emplace_back(std::move(socket), handshake_limit_s);
    if (pending_.size() > max_pending_) pending_.pop_front();
  }
}

std::optional<Acceptor::JoinRequest> Acceptor::next(const StartWatch& watch,
                                                    const std::vector<Socket>& connected) {
  while (true) {
    watch.look();
    for (auto pending = pending_.begin(); pending != pending_.end();) {
      if (advance(*pending)) {
        JoinRequest joined{*pending->request, std::move(pending->socket)};
        pending_.erase(pending);
        joined_[static_cast<std::size_t>(joined.request.rank)] = true;
        return joined;
      }
      pending = pending->closed ? pending_.erase(pending) : std::next(pending);
    }
    if (watch.over()) return std::nullopt;
    wait(watch, connected);
    accept_some();
  }
}

}  // namespace usp::comm
