// SPDX-License-Identifier: Apache-2.0
#include "guest.hpp"

#include "door.hpp"

#include "usp/comm/errors.hpp"

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
[[nodiscard]] Socket try_connect(const Address& address, const Deadline& deadline, int& error) {
  Socket socket = start_connect(address, error);
  if (!socket.is_open()) return socket;
  constexpr int patience_ms = 5000;  // then another address may do
  pollfd one{socket.descriptor(), POLLOUT, 0};
  error = ::poll(&one, 1, deadline.left_ms(patience_ms)) > 0 ? connect_error(socket) : ETIMEDOUT;
  return error == 0 ? std::move(socket) : Socket();
}

}  // namespace

std::string seconds(double value) {
  std::ostringstream text;
  text << value << " s";
  return text.str();
}

Socket Guest::connect(const Seat& seat) const {
  int error = 0;
  do {
    for (const Address& address : seat.addresses) {
      Socket socket = try_connect(address, deadline_, error);
      if (socket.is_open()) return socket;
    }
    if (seat.listening && error == ECONNREFUSED) report_gone(job_.rank, seat.peer);
    rest();
  } while (!deadline_.over());
  throw CommunicationError(
      {"start",
       -1,
       job_.rank,
       {seat.peer},
       "rank " + std::to_string(job_.rank) + " could not reach rank " + std::to_string(seat.peer) + " at " +
           seat.addresses.front().text() + " within " + seconds(start_s_) + " (" +
           std::generic_category().message(error) +
           "); see whether it runs, and whether the hosts can reach each other's ports"});
}

Guest::Asked Guest::ask(const Seat& seat, Socket socket) const {
  const Hello hello{.size = job_.size,
                    .rank = job_.rank,
                    .port = seat.port,
                    .digest = seat.digest,
                    .secured = key_.secured() ? 1U : 0U,
                    .nonce = fresh_nonce()};
  // Where that fails the connection is over, which finish() hears.
  (void)send_whole(socket, &hello, sizeof hello, Deadline(1));
  return {seat, std::move(socket), hello};
}

/// The next reply of the host; false when the connection is over.
bool Guest::hear(Asked& asked, Reply& reply) const {
  std::array<std::byte, sizeof(Reply)> bytes;
  const Heard heard = receive_whole(asked.socket, bytes.data(), static_cast<i64>(bytes.size()), deadline_);
  if (heard == Heard::closed) return false;
  const std::string peer = "rank " + std::to_string(asked.seat.peer);
  if (heard == Heard::late)
    throw CommunicationError({"start",
                              -1,
                              job_.rank,
                              {asked.seat.peer},
                              "rank " + std::to_string(job_.rank) + " waited " + seconds(start_s_) +
                                  " to be let in by " + peer +
                                  ", which did not answer; see whether all ranks were started"});
  const std::optional<Reply> known = parse_reply(bytes);
  if (!known)
    throw EnvironmentError("what listens at " + asked.socket.remote().text() + " is not " + peer +
                           " of this job; choose a free port with USP_MASTER_PORT, the same for all ranks");
  if (known->refusal.front() != '\0') throw EnvironmentError(known->refusal.data());
  reply = *known;
  return true;
}

/// The rest of the handshake; false when the connection was dropped meanwhile.
bool Guest::enter(Asked& asked) const {
  Reply reply;
  if (!hear(asked, reply)) return false;
  const Meeting meeting = meeting_of(asked.hello, asked.seat.peer, reply.value);
  const Proof proof = key_.guest_proof(meeting);
  if (!send_whole(asked.socket, &proof, sizeof proof, deadline_) || !hear(asked, reply)) return false;
  if (key_.secured() && (reply.secured == 0 || !same(reply.value, key_.host_proof(meeting))))
    throw EnvironmentError("what listens at " + asked.socket.remote().text() +
                           " did not prove that it knows the secret of this job, so it is not rank " +
                           std::to_string(asked.seat.peer) +
                           "; give all ranks the same USP_JOB_TOKEN, and see who uses that port");
  return true;
}

Socket Guest::finish(Asked asked) const {
  while (!enter(asked)) {
    if (deadline_.over()) report_gone(job_.rank, asked.seat.peer);
    rest();
    asked = ask(asked.seat);
  }
  return std::move(asked.socket);
}

}  // namespace usp::comm
