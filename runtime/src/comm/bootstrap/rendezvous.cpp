// SPDX-License-Identifier: Apache-2.0
#include "rendezvous.hpp"

#include "../failure/faults.hpp"
#include "acceptor.hpp"
#include "connector.hpp"
#include "job_secret.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace usp::comm {
namespace {

/// How much longer the others wait than rank 0, whose error names the missing ranks.
constexpr double patience_s = 2;
constexpr int max_port_number = 65535;

/// Where the ranks meet: of ranks that share a host, its loopback, whatever the host is called.
[[nodiscard]] std::vector<Address> meeting_place(const SocketJob& job) {
  std::vector<Address> place = resolve(job.one_host ? "localhost" : job.host, job.port);
  for (const Address& address : place)
    if (address.unspecified())
      throw EnvironmentError(
          fmt::format("MASTER_ADDR {} means all interfaces of a host, but rank 0 listens at one; set it to "
                      "the name or address of rank 0's host by which the other ranks reach it",
                      job.host));
  return place;
}

/// Where a rank listens for the others, which reach its host as it reaches rank 0. On loopback they dial the
/// address of rank 0: a host has many loopback addresses, and connections to any come from 127.0.0.1.
[[nodiscard]] Address interface_of(const Socket& to_rank_0) {
  const Address here = to_rank_0.local();
  return here.loopback() ? to_rank_0.remote() : here;
}

[[nodiscard]] bool all_loopback(const std::vector<Address>& addresses) {
  return std::all_of(addresses.begin(), addresses.end(), [](const Address& one) { return one.loopback(); });
}

[[nodiscard]] JobKey key_of(const SocketJob& job) {
  return job.secret.empty() ? JobKey() : JobKey(job.secret, job.size, job.digest);
}

void check_network(const SocketJob& job, const CommOptions& options, const std::vector<Address>& place) {
  if (!job.secret.empty() || options.trust_network || all_loopback(place)) return;
  throw OpenNetworkError(fmt::format(
      "the ranks of this job meet over a network (MASTER_ADDR {}) without a secret, so that "
      "any process that reaches the port could join as a rank; make one, and give it to all ranks: {} "
      "(or start with torchrun --rdzv-id $(openssl rand -hex 16)), or go on with --trust-network "
      "where only the ranks reach these ports",
      job.host, secret_command()));
}

void check_job(const SocketJob& job) {
  if (job.size > max_ranks)
    throw UsageError(fmt::format("a job of {} ranks; at most {} can meet over sockets", job.size, max_ranks));
  if (job.size < 1 || job.rank < 0 || job.rank >= job.size)
    throw UsageError(fmt::format("rank {} of a job of {}; ranks are counted from 0", job.rank, job.size));
  if (job.size == 1) return;
  if (job.port < 0 || job.port > max_port_number)
    throw UsageError(
        fmt::format("port {} is outside 0 to {}; give a port of TCP", job.port, max_port_number));
  if (job.port == 0 && job.rank != 0)
    throw UsageError(fmt::format("rank {} has port 0; give it the port at which rank 0 listens", job.rank));
  if (job.port == 0 && !job.on_listening)
    throw UsageError(
        "rank 0 has port 0, a free one, and no callback that gets its number, so that no other rank can find "
        "it; set on_listening, or give all ranks a port");
}

/// A name of this host may mean its loopback here and its interface elsewhere.
[[nodiscard]] std::string hint_for(const SocketJob& job, const std::vector<Address>& place) {
  if (job.one_host || !place.front().loopback()) return "";
  return fmt::format(" (here MASTER_ADDR {} is {}, which no other host reaches)", job.host,
                     place.front().text());
}

[[noreturn]] void report_absent(const SocketJob& job, const Acceptor& acceptor, int first, double start_s,
                                const std::string& hint) {
  std::vector<int> missing;
  for (int rank = first; rank < job.size; ++rank)
    if (!acceptor.knows(rank)) missing.push_back(rank);
  const std::string absent = list_ranks(missing);
  throw CommunicationError(
      {"start", -1, job.rank, missing,
       fmt::format("rank {} waited {} for {} to start, which did not arrive{}; start all {} ranks, with the "
                   "same MASTER_ADDR and MASTER_PORT{}",
                   job.rank, seconds(start_s), absent, acceptor.rejections(), job.size, hint)});
}

[[nodiscard]] double start_s_of(const CommOptions& options) {
  return options.start_s.value_or(options.watchdog_s);
}

/// A number that ranks of one job greet one another with.
[[nodiscard]] std::uint64_t random_number() {
  const Nonce nonce = random_nonce();
  std::uint64_t number = 0;
  std::memcpy(&number, nonce.data(), sizeof number);
  return number;
}

/// Rank 0: hears where all listen.
[[nodiscard]] std::vector<RankEndpoint> gather_all(const SocketJob& job, const CommOptions& options,
                                                   const std::vector<Address>& place,
                                                   std::vector<Socket>& sockets) {
  const Socket listener = listen_at(place);
  if (job.on_listening) job.on_listening(port_of(listener));
  const double start_s = start_s_of(options);
  const StartWatch watch(start_s, options, job.rank);
  Acceptor acceptor(listener, {.size = job.size, .digest = job.digest, .key = key_of(job)});
  std::vector<RankEndpoint> table(static_cast<std::size_t>(job.size));
  for (int count = 1; count < job.size; ++count) {
    std::optional<Acceptor::JoinRequest> one = acceptor.next(watch, sockets);
    if (!one) report_absent(job, acceptor, 1, start_s, hint_for(job, place));
    const auto rank = static_cast<std::size_t>(one->request.rank);
    table[rank].port = one->request.port;
    if (const Address from = one->socket.remote(); !from.loopback()) table[rank].address = from;
    sockets[rank] = std::move(one->socket);
  }
  return table;
}

/// Rank 0: connects all ranks, or sends all of them the reason why that fails.
void host(const SocketJob& job, const CommOptions& options, const std::vector<Address>& place,
          std::vector<Socket>& sockets) {
  std::vector<RankEndpoint> table;
  try {
    table = gather_all(job, options, place, sockets);
  } catch (const CommunicationError& error) {
    for (Socket& socket : sockets)
      if (socket.is_open()) send_rejection(socket, error.what());
    throw;
  }
  const std::uint64_t session = random_number();
  HandshakeReply head = acceptance_reply(key_of(job), {});
  std::memcpy(head.value.data(), &session, sizeof session);
  const StartWatch watch(start_s_of(options), options, job.rank);
  for (int rank = 1; rank < job.size; ++rank) {
    Socket& socket = sockets[static_cast<std::size_t>(rank)];
    if (!send_whole(socket, &head, sizeof head, watch) ||
        !send_whole(socket, table.data(), static_cast<i64>(table.size() * sizeof(RankEndpoint)), watch))
      report_disconnected(0, rank);
  }
}

/// Another rank: asks rank 0, then the ranks below, and is asked by those above.
class Joiner {
 public:
  Joiner(const SocketJob& job, const CommOptions& options, const std::vector<Address>& place,
         std::vector<Socket>& sockets)
      : job_(job),
        start_s_(start_s_of(options)),
        place_(place),
        watch_(start_s_ + patience_s, options, job.rank),
        key_(key_of(job)),
        connector_(job, key_, watch_, start_s_),
        sockets_(sockets) {}
  void join() {
    Connector::JoinTarget target{.addresses = place_, .digest = job_.digest};
    Socket first = connector_.connect(target);
    Address here = interface_of(first);
    here.set_port(0);
    const Socket listener = listen_at({here});
    target.port = port_of(listener);
    sockets_[0] = connector_.complete(connector_.send_request(target, std::move(first)));
    receive_table();
    // All are asked at once, since each answers only once it is in itself.
    std::vector<Connector::OpenHandshake> handshake;
    for (int peer = 1; peer < job_.rank; ++peer)
      handshake.push_back(connector_.send_request(target_of(peer)));
    for (int peer = 1; peer < job_.rank; ++peer)
      sockets_[static_cast<std::size_t>(peer)] =
          connector_.complete(std::move(handshake[static_cast<std::size_t>(peer - 1)]));
    Acceptor acceptor(listener, {job_.rank, job_.rank + 1, job_.size, session_, key_});
    for (int count = job_.rank + 1; count < job_.size; ++count) accept_one(acceptor);
  }

 private:
  /// What rank 0 says once all are there.
  void receive_table() {
    std::vector<std::byte> bytes(sizeof(HandshakeReply));
    receive(bytes);
    const std::optional<HandshakeReply> head = parse_reply(bytes);
    if (head && head->rejection.front() != '\0') throw EnvironmentError(head->rejection.data());
    bytes.resize(static_cast<std::size_t>(job_.size) * sizeof(RankEndpoint));
    if (head) receive(bytes);
    std::optional<std::vector<RankEndpoint>> table = parse_table(bytes, job_.size);
    if (!head || !table)
      throw EnvironmentError(
          "rank 0 sent no table of the ranks; the connection is damaged, or both run another "
          "version");
    std::memcpy(&session_, head->value.data(), sizeof session_);
    table_ = std::move(*table);
  }
  void receive(std::vector<std::byte>& bytes) {
    const ReadResult received =
        receive_whole(sockets_[0], bytes.data(), static_cast<i64>(bytes.size()), watch_);
    if (received != ReadResult::complete) report_disconnected(job_.rank, 0);
  }
  [[nodiscard]] Connector::JoinTarget target_of(int peer) const {
    const RankEndpoint& entry = table_[static_cast<std::size_t>(peer)];
    Address address = entry.address.length > 0 ? entry.address : sockets_[0].remote();
    address.set_port(entry.port);
    return {peer, {address}, 0, session_, true};
  }
  void accept_one(Acceptor& acceptor) {
    std::optional<Acceptor::JoinRequest> one = acceptor.next(watch_, sockets_);
    if (!one) report_absent(job_, acceptor, job_.rank + 1, start_s_, "");
    sockets_[static_cast<std::size_t>(one->request.rank)] = std::move(one->socket);
  }

  const SocketJob& job_;
  double start_s_;
  const std::vector<Address>& place_;
  StartWatch watch_;
  JobKey key_;
  Connector connector_;
  std::vector<Socket>& sockets_;
  std::uint64_t session_ = 0;
  std::vector<RankEndpoint> table_;
};

}  // namespace

bool on_loopback(const SocketJob& job) {
  return all_loopback(meeting_place(job));
}

std::vector<Socket> connect_all(const SocketJob& job, const CommOptions& options) {
  check_job(job);
  std::vector<Socket> sockets(static_cast<std::size_t>(job.size));
  if (job.size == 1) return sockets;
  const std::vector<Address> place = meeting_place(job);
  check_network(job, options, place);
  if (job.rank == 0)
    host(job, options, place, sockets);
  else
    Joiner(job, options, place, sockets).join();
  return sockets;
}

}  // namespace usp::comm
