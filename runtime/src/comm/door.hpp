// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "socket.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <vector>

namespace usp::comm {

/// The time until which ranks wait for one another.
class Deadline {
 public:
  explicit Deadline(double limit_s);
  [[nodiscard]] bool over() const { return Clock::now() >= end_; }
  /// For poll(): what is left, at most `most_ms`, at least 1.
  [[nodiscard]] int left_ms(int most_ms) const;

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point end_;
};

constexpr std::uint64_t hello_magic = 0x7573702D72616E6BU;
constexpr std::uint32_t hello_version = 1;

/// What a rank says first. Plain bytes in the order of the machine: unlike machines do not understand each
/// other's magic number.
struct Hello {
  std::uint64_t magic = hello_magic;
  std::uint32_t version = hello_version;
  std::int32_t size = 0;
  std::int32_t rank = 0;
  std::int32_t port = 0;  ///< where the rank listens
  std::uint64_t digest = 0;
};

/// What it hears.
struct Answer {
  std::uint64_t magic = hello_magic;
  std::array<char, 504> refusal{};  ///< empty: welcome
};

/// Tells why the other end is not let in.
void refuse(Socket& socket, const std::string& why);

/// Lets in those who say hello as members of a job, each rank once; tells others why not. Strangers, who say
/// anything else or nothing, are dropped and hold up nobody.
class Door {
 public:
  struct Newcomer {
    Hello hello;
    Socket socket;
  };
  /// Lets in ranks [first, size) that hold `digest`, as rank `mine`.
  Door(const Socket& listener, int mine, int first, int size, std::uint64_t digest);
  /// The next member, who has not been answered yet; none when the time is over. Throws CommunicationError
  /// when one of `connected` (by rank) leaves.
  [[nodiscard]] std::optional<Newcomer> next(const Deadline& deadline, const std::vector<Socket>& connected);
  [[nodiscard]] bool knows(int rank) const { return known_[static_cast<std::size_t>(rank)]; }
  /// Who was sent away and why, for the story of those who did not come; empty when nobody was.
  [[nodiscard]] const std::string& refusals() const { return refusals_; }

 private:
  struct Caller {
    Socket socket;
    Hello hello;
    i64 heard = 0;
    bool gone = false;
  };
  void wait(const Deadline& deadline, const std::vector<Socket>& connected) const;
  static void listen(Caller& caller);
  [[nodiscard]] std::string refusal(const Hello& hello) const;

  const Socket& listener_;
  int mine_;
  int first_;
  int size_;
  std::uint64_t digest_;
  std::vector<bool> known_;
  std::list<Caller> callers_;
  std::string refusals_;
};

/// Sends what fits into a fresh connection at once; false when the connection is over.
[[nodiscard]] bool send_whole(Socket& socket, const void* data, i64 bytes, const Deadline& deadline);
enum class Heard : std::uint8_t { all, closed, late };
[[nodiscard]] Heard receive_whole(Socket& socket, void* data, i64 bytes, const Deadline& deadline);
/// Throws CommunicationError: the connection of rank `mine` to `peer` closed while the ranks met.
[[noreturn]] void report_gone(int mine, int peer);

}  // namespace usp::comm
