// SPDX-License-Identifier: Apache-2.0
#include "rendezvous.hpp"

#include "door.hpp"
#include "faults.hpp"

#include "usp/base/error.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <random>
#include <sstream>
#include <system_error>
#include <thread>

namespace usp::comm {
namespace {

/// Where a rank listens, as rank 0 tells it.
struct Entry {
  Address address;  ///< no length: at the host of rank 0, as the reader reaches it
  std::int32_t port = 0;
};
/// How much longer the others wait than rank 0, whose story names those who did not come.
constexpr double patience_s = 2;
/// What rank 0 tells everybody once all are there; entries of all ranks follow.
struct TableHead {
  std::uint64_t session = 0;  ///< what ranks greet one another with
};

[[nodiscard]] std::string seconds(double value) {
  std::ostringstream text;
  text << value << " s";
  return text.str();
}

[[noreturn]] void report_absent(const SocketJob& job, const Door& door, int first, double watchdog_s) {
  std::vector<int> missing;
  for (int rank = first; rank < job.size; ++rank)
    if (!door.knows(rank)) missing.push_back(rank);
  const std::string who = list_ranks(missing);
  throw CommunicationError({"start", -1, job.rank, missing,
                            "rank " + std::to_string(job.rank) + " waited " + seconds(watchdog_s) + " for " +
                                who + " to start, which did not arrive" + door.refusals() + "; start all " +
                                std::to_string(job.size) +
                                " ranks, with the same MASTER_ADDR and MASTER_PORT"});
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

/// Connects to a rank that may not have started yet.
[[nodiscard]] Socket connect_to(int peer, const std::vector<Address>& addresses, const SocketJob& job,
                                const Deadline& deadline, double watchdog_s) {
  int error = 0;
  do {
    for (const Address& address : addresses) {
      Socket socket = try_connect(address, deadline, error);
      if (socket.is_open()) return socket;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  } while (!deadline.over());
  throw CommunicationError(
      {"start",
       -1,
       job.rank,
       {peer},
       "rank " + std::to_string(job.rank) + " could not reach rank " + std::to_string(peer) + " at " +
           addresses.front().text() + " within " + seconds(watchdog_s) + " (" +
           std::generic_category().message(error) +
           "); see whether it runs, and whether the hosts can reach each other's ports"});
}

/// The answer to a hello: whether this rank is welcome.
void hear_answer(Socket& socket, int peer, const SocketJob& job, const Deadline& deadline,
                 double watchdog_s) {
  Answer answer;
  const Heard heard = receive_whole(socket, &answer, sizeof answer, deadline);
  if (heard == Heard::closed) report_gone(job.rank, peer);
  if (heard == Heard::late)
    throw CommunicationError({"start",
                              -1,
                              job.rank,
                              {peer},
                              "rank " + std::to_string(job.rank) + " waited " + seconds(watchdog_s) +
                                  " to be let in by rank " + std::to_string(peer) +
                                  ", which did not answer; see whether all ranks were started"});
  if (answer.magic != hello_magic)
    throw EnvironmentError("what listens at " + socket.remote().text() + " is not rank " +
                           std::to_string(peer) +
                           " of this job; choose a free port with USP_MASTER_PORT, the same for all ranks");
  answer.refusal.back() = '\0';
  if (answer.refusal.front() != '\0') throw EnvironmentError(answer.refusal.data());
}

void say_hello(Socket& socket, int peer, const SocketJob& job, int port, std::uint64_t digest) {
  const Hello hello{.size = job.size, .rank = job.rank, .port = port, .digest = digest};
  if (!send_whole(socket, &hello, sizeof hello, Deadline(1))) report_gone(job.rank, peer);
}

[[nodiscard]] std::uint64_t random_number() {
  std::random_device random;
  return (static_cast<std::uint64_t>(random()) << 32U) ^ random();
}

/// Rank 0: hears where all listen.
[[nodiscard]] std::vector<Entry> gather_all(const SocketJob& job, double watchdog_s, const Deadline& deadline,
                                            std::vector<Socket>& sockets) {
  const Socket listener = listen_at(job.host, job.port);
  Door door(listener, 0, 1, job.size, job.digest);
  std::vector<Entry> table(static_cast<std::size_t>(job.size));
  for (int count = 1; count < job.size; ++count) {
    std::optional<Door::Newcomer> one = door.next(deadline, sockets);
    if (!one) report_absent(job, door, 1, watchdog_s);
    const auto rank = static_cast<std::size_t>(one->hello.rank);
    table[rank].port = one->hello.port;
    if (const Address from = one->socket.remote(); !from.loopback()) table[rank].address = from;
    sockets[rank] = std::move(one->socket);
  }
  return table;
}

/// Rank 0: brings all together, or tells all why that fails.
void host(const SocketJob& job, double watchdog_s, std::vector<Socket>& sockets) {
  const Deadline deadline(watchdog_s);
  std::vector<Entry> table;
  try {
    table = gather_all(job, watchdog_s, deadline, sockets);
  } catch (const CommunicationError& error) {
    for (Socket& socket : sockets)
      if (socket.is_open()) refuse(socket, error.what());
    throw;
  }
  const Answer welcome;
  const TableHead head{random_number()};
  for (int rank = 1; rank < job.size; ++rank) {
    Socket& socket = sockets[static_cast<std::size_t>(rank)];
    if (!send_whole(socket, &welcome, sizeof welcome, deadline) ||
        !send_whole(socket, &head, sizeof head, deadline) ||
        !send_whole(socket, table.data(), static_cast<i64>(table.size() * sizeof(Entry)), deadline))
      report_gone(0, rank);
  }
}

/// Another rank: asks rank 0, then the ranks below, and is asked by those above.
class Guest {
 public:
  Guest(const SocketJob& job, double watchdog_s, std::vector<Socket>& sockets)
      : job_(job), watchdog_s_(watchdog_s), deadline_(watchdog_s + patience_s), sockets_(sockets) {}
  void join() {
    const Socket listener = listen_at(job_.host, 0);
    sockets_[0] = connect_to(0, resolve(job_.host, job_.port), job_, deadline_, watchdog_s_);
    const Address master = sockets_[0].remote();
    say_hello(sockets_[0], 0, job_, port_of(listener), job_.digest);
    hear_answer(sockets_[0], 0, job_, deadline_, watchdog_s_);
    TableHead head;
    std::vector<Entry> table(static_cast<std::size_t>(job_.size));
    hear(&head, sizeof head);
    hear(table.data(), static_cast<i64>(table.size() * sizeof(Entry)));
    for (int peer = 1; peer < job_.rank; ++peer)
      ask(peer, table[static_cast<std::size_t>(peer)], master, head);
    Door door(listener, job_.rank, job_.rank + 1, job_.size, head.session);
    for (int count = job_.rank + 1; count < job_.size; ++count) let_in(door);
    for (int peer = 1; peer < job_.rank; ++peer)
      hear_answer(sockets_[static_cast<std::size_t>(peer)], peer, job_, deadline_, watchdog_s_);
  }

 private:
  void hear(void* data, i64 bytes) {
    if (receive_whole(sockets_[0], data, bytes, deadline_) != Heard::all) report_gone(job_.rank, 0);
  }
  void ask(int peer, const Entry& entry, const Address& master, const TableHead& head) {
    Address address = entry.address.length > 0 ? entry.address : master;
    address.set_port(entry.port);
    Socket socket = connect_to(peer, {address}, job_, deadline_, watchdog_s_);
    say_hello(socket, peer, job_, 0, head.session);
    sockets_[static_cast<std::size_t>(peer)] = std::move(socket);
  }
  void let_in(Door& door) {
    std::optional<Door::Newcomer> one = door.next(deadline_, sockets_);
    if (!one) report_absent(job_, door, job_.rank + 1, watchdog_s_);
    const Answer welcome;
    if (!send_whole(one->socket, &welcome, sizeof welcome, deadline_))
      report_gone(job_.rank, one->hello.rank);
    sockets_[static_cast<std::size_t>(one->hello.rank)] = std::move(one->socket);
  }

  const SocketJob& job_;
  double watchdog_s_;
  Deadline deadline_;
  std::vector<Socket>& sockets_;
};

}  // namespace

std::vector<Socket> meet(const SocketJob& job, double watchdog_s) {
  if (job.size < 1 || job.rank < 0 || job.rank >= job.size)
    throw UsageError("rank " + std::to_string(job.rank) + " of a job of " + std::to_string(job.size) +
                     "; ranks are counted from 0");
  std::vector<Socket> sockets(static_cast<std::size_t>(job.size));
  if (job.size == 1) return sockets;
  if (job.rank == 0)
    host(job, watchdog_s, sockets);
  else
    Guest(job, watchdog_s, sockets).join();
  return sockets;
}

}  // namespace usp::comm
