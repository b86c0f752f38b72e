// SPDX-License-Identifier: Apache-2.0
#include "connector.hpp"

#include "acceptor.hpp"

#include "usp/comm/errors.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <poll.h>
#include <sstream>
#include <system_error>
#include <thread>

namespace usp::comm {
namespace {

void rest() {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

/// One attempt: a connection, or why there is none.
[[nodiscard]] Socket try_connect(const Address& address, const StartWatch& watch, int& error) {
  Socket socket = start_connect(address, error);
  if (!socket.is_open()) return socket;
  const Deadline patience(5);  // then another address may do
  pollfd one{socket.descriptor(), POLLOUT, 0};
  int ready = 0;
  while (ready <= 0 && !patience.over() && !watch.over()) {
    watch.look();
    ready = ::poll(&one, 1, watch.left_ms(watch.max_sleep_ms));
  }
  error = ready > 0 ? connect_error(socket) : ETIMEDOUT;
  return error == 0 ? std::move(socket) : Socket();
}

}  // namespace

std::string seconds(double value) {
  std::ostringstream text;
  text << value << " s";
  return text.str();
}

Socket Connector::connect(const JoinTarget& target) const {
  int error = 0;
  do {
    watch_.look();
    for (const Address& address : target.addresses) {
      Socket socket = try_connect(address, watch_, error);
      if (socket.is_open()) return socket;
    }
    if (target.listening && error == ECONNREFUSED) report_disconnected(job_.rank, target.peer);
    rest();
  } while (!watch_.over());
  throw CommunicationError({"start",
                            -1,
                            job_.rank,
                            {target.peer},
                            fmt::format("rank {} could not reach rank {} at {} within {} ({}); see whether "
                                        "it runs, and whether the hosts can reach each other's ports",
                                        job_.rank, target.peer, target.addresses.front().text(),
                                        seconds(start_s_), std::generic_category().message(error))});
}

Connector::OpenHandshake Connector::send_request(const JoinTarget& target, Socket socket) const {
  const HandshakeRequest request{.size = job_.size,
                                 .rank = job_.rank,
                                 .port = target.port,
                                 .digest = target.digest,
                                 .secured = key_.secured() ? 1U : 0U,
                                 .nonce = random_nonce()};
  // Where that fails the connection is over, which finish() hears.
  (void)send_whole(socket, &request, sizeof request, StartWatch(1));
  return {target, std::move(socket), request};
}

/// The next reply of the host; false when the connection is over.
bool Connector::receive_reply(OpenHandshake& handshake, HandshakeReply& reply) const {
  std::array<std::byte, sizeof(HandshakeReply)> bytes;
  const ReadResult received =
      receive_whole(handshake.socket, bytes.data(), static_cast<i64>(bytes.size()), watch_);
  if (received == ReadResult::closed) return false;
  const std::string peer = fmt::format("rank {}", handshake.target.peer);
  if (received == ReadResult::timed_out)
    throw CommunicationError(
        {"start",
         -1,
         job_.rank,
         {handshake.target.peer},
         fmt::format(
             "rank {} waited {} to be let in by {}, which did not answer; see whether all ranks were started",
             job_.rank, seconds(start_s_), peer)});
  const std::optional<HandshakeReply> parsed = parse_reply(bytes);
  if (!parsed)
    throw EnvironmentError(
        fmt::format("the listener at {} is not {} of this job; choose a free port with USP_MASTER_PORT, the "
                    "same for all ranks",
                    handshake.socket.remote().text(), peer));
  if (parsed->rejection.front() != '\0') throw EnvironmentError(parsed->rejection.data());
  reply = *parsed;
  return true;
}

/// The rest of the handshake; false when the connection was dropped meanwhile.
bool Connector::authenticate(OpenHandshake& handshake) const {
  HandshakeReply reply;
  if (!receive_reply(handshake, reply)) return false;
  const HandshakeContext context = context_of(handshake.request, handshake.target.peer, reply.value);
  const Proof proof = key_.connector_proof(context);
  if (!send_whole(handshake.socket, &proof, sizeof proof, watch_) || !receive_reply(handshake, reply))
    return false;
  if (key_.secured() && (reply.secured == 0 || !same(reply.value, key_.acceptor_proof(context))))
    throw EnvironmentError(
        fmt::format("the listener at {} did not prove that it knows the secret of this job, so it is not "
                    "rank {}; give all ranks the same USP_JOB_TOKEN, and see which process uses that port",
                    handshake.socket.remote().text(), handshake.target.peer));
  return true;
}

Socket Connector::complete(OpenHandshake handshake) const {
  while (!authenticate(handshake)) {
    if (watch_.over()) report_disconnected(job_.rank, handshake.target.peer);
    rest();
    handshake = send_request(handshake.target);
  }
  return std::move(handshake.socket);
}

}  // namespace usp::comm
