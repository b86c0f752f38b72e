// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../failure/start_watch.hpp"
#include "handshake.hpp"
#include "socket.hpp"

#include <array>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace usp::comm {

/// What a rank is let in by.
struct AcceptRules {
  int mine = 0;   ///< the rank that listens
  int first = 1;  ///< ranks [first, size) may come
  int size = 1;
  std::uint64_t digest = 0;
  JobKey key;
};

/// Accepts connections that prove membership of the job, each rank once; answers others with the reason.
/// Connections that send anything else, or nothing, are closed without delaying others: each has so many
/// bytes and seconds, and only so many wait.
class Acceptor {
 public:
  struct JoinRequest {
    HandshakeRequest request;
    Socket socket;
  };
  Acceptor(const Socket& listener, const AcceptRules& rules);
  /// The next member, already acknowledged; none where the time is over. Throws CommunicationError
  /// when one of `connected` (by rank) leaves, or the caller interrupts.
  [[nodiscard]] std::optional<JoinRequest> next(const StartWatch& watch,
                                                const std::vector<Socket>& connected);
  [[nodiscard]] bool knows(int rank) const { return joined_[static_cast<std::size_t>(rank)]; }
  /// Rejected connections and reasons, for the error about missing ranks; empty: none. The first
  /// few of each kind, the furthest handshake first, so that foreign connections cannot displace those of
  /// ranks.
  [[nodiscard]] std::string rejections() const;

 private:
  /// In the order of how much a caller showed before it was refused.
  enum class Kind : std::uint8_t { taken, unproved, secret, job, size, version };
  struct Rejection {
    Kind kind;
    std::string why;
  };
  struct PendingPeer {
    PendingPeer(Socket its_socket, double limit_s) : socket(std::move(its_socket)), deadline(limit_s) {}
    Socket socket;
    Deadline deadline;
    std::array<std::byte, sizeof(HandshakeRequest)> received{};  ///< hello, then proof
    std::size_t count = 0;
    std::optional<HandshakeRequest> request;  ///< once it is whole
    Nonce nonce{};                            ///< what this rank challenged it with
    bool closed = false;
  };
  void wait(const StartWatch& watch, const std::vector<Socket>& connected) const;
  void accept_some();
  [[nodiscard]] bool advance(PendingPeer& pending);
  void read_request(PendingPeer& pending);
  [[nodiscard]] bool check_proof(PendingPeer& pending);
  void reject(PendingPeer& pending, const Rejection& rejection);
  [[nodiscard]] std::optional<Rejection> check_request(const HandshakeRequest& request) const;
  [[nodiscard]] std::optional<Rejection> check_rank(const HandshakeRequest& request) const;

  const Socket& listener_;
  AcceptRules rules_;
  std::size_t max_pending_;
  std::vector<bool> joined_;
  std::list<PendingPeer> pending_;
  std::map<Kind, std::vector<std::string>> rejections_;  ///< different ones
};

/// Sends what fits into a fresh connection at once; false when the connection is over.
[[nodiscard]] bool send_whole(Socket& socket, const void* data, i64 bytes, const StartWatch& watch);
enum class ReadResult : std::uint8_t { complete, closed, timed_out };
[[nodiscard]] ReadResult receive_whole(Socket& socket, void* data, i64 bytes, const StartWatch& watch);
/// Sends the reason of a refusal, or of a job that does not start; does not block.
void send_rejection(Socket& socket, const std::string& why);
/// Throws CommunicationError: the connection of rank `mine` to `peer` closed while the ranks met.
[[noreturn]] void report_disconnected(int mine, int peer);

}  // namespace usp::comm
