// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../failure/deadline.hpp"
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
struct DoorRules {
  int mine = 0;   ///< the rank that listens
  int first = 1;  ///< ranks [first, size) may come
  int size = 1;
  std::uint64_t digest = 0;
  JobKey key;
};

/// Lets in those who say hello as members of a job and prove it, each rank once; tells others why not.
/// Strangers, who say anything else or nothing, are dropped and hold up nobody: each has so many bytes and
/// seconds, and only so many wait.
class Door {
 public:
  struct Newcomer {
    Hello hello;
    Socket socket;
  };
  Door(const Socket& listener, const DoorRules& rules);
  /// The next member, who has been told that it is in; none when the time is over. Throws CommunicationError
  /// when one of `connected` (by rank) leaves.
  [[nodiscard]] std::optional<Newcomer> next(const Deadline& deadline, const std::vector<Socket>& connected);
  [[nodiscard]] bool knows(int rank) const { return known_[static_cast<std::size_t>(rank)]; }
  /// Who was sent away and why, for the story of those who did not come; empty when nobody was. The first
  /// few of each kind, those who came closest to a seat first: what strangers say displaces no rank's story.
  [[nodiscard]] std::string refusals() const;

 private:
  /// In the order of how much a caller showed before it was refused.
  enum class Kind : std::uint8_t { taken, unproved, secret, job, size, version };
  struct Refusal {
    Kind kind;
    std::string why;
  };
  struct Caller {
    Caller(Socket its_socket, double limit_s) : socket(std::move(its_socket)), deadline(limit_s) {}
    Socket socket;
    Deadline deadline;
    std::array<std::byte, sizeof(Hello)> heard{};  ///< hello, then proof
    std::size_t count = 0;
    std::optional<Hello> hello;  ///< once it is whole
    Nonce nonce{};               ///< what this rank challenged it with
    bool over = false;
  };
  void wait(const Deadline& deadline, const std::vector<Socket>& connected) const;
  void accept_some();
  [[nodiscard]] bool serve(Caller& caller);
  void greet(Caller& caller);
  [[nodiscard]] bool prove(Caller& caller);
  void turn_away(Caller& caller, const Refusal& refusal);
  [[nodiscard]] std::optional<Refusal> mismatch(const Hello& hello) const;
  [[nodiscard]] std::optional<Refusal> taken(const Hello& hello) const;

  const Socket& listener_;
  DoorRules rules_;
  std::size_t max_callers_;
  std::vector<bool> known_;
  std::list<Caller> callers_;
  std::map<Kind, std::vector<std::string>> refusals_;  ///< different ones
};

/// Sends what fits into a fresh connection at once; false when the connection is over.
[[nodiscard]] bool send_whole(Socket& socket, const void* data, i64 bytes, const Deadline& deadline);
enum class Heard : std::uint8_t { all, closed, late };
[[nodiscard]] Heard receive_whole(Socket& socket, void* data, i64 bytes, const Deadline& deadline);
/// Tells why the other end is not let in, or why the job does not start; does not wait.
void refuse(Socket& socket, const std::string& why);
/// Throws CommunicationError: the connection of rank `mine` to `peer` closed while the ranks met.
[[noreturn]] void report_gone(int mine, int peer);

}  // namespace usp::comm
