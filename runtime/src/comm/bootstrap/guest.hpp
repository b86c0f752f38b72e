// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../failure/deadline.hpp"
#include "handshake.hpp"
#include "socket.hpp"

#include "usp/comm/sockets.hpp"

#include <vector>

namespace usp::comm {

/// A rank that asks others to let it in: the other side of Door.
class Guest {
 public:
  /// Where a rank listens, and what it is told.
  struct Seat {
    int peer = 0;
    std::vector<Address> addresses;
    int port = 0;  ///< where this rank listens; 0: nowhere
    std::uint64_t digest = 0;
    bool listening = false;  ///< the peer listens already: where it does not, it has gone
  };
  /// A hello that is on its way.
  struct Asked {
    Seat seat;
    Socket socket;
    Hello hello;
  };
  /// `deadline` is when `start_s` and some patience are over.
  Guest(const SocketJob& job, const JobKey& key, const Deadline& deadline, double start_s)
      : job_(job), key_(key), deadline_(deadline), start_s_(start_s) {}

  /// Connects to a rank that may not have started yet. Throws CommunicationError when it does not in time.
  [[nodiscard]] Socket connect(const Seat& seat) const;
  [[nodiscard]] Asked ask(const Seat& seat, Socket socket) const;
  [[nodiscard]] Asked ask(const Seat& seat) const { return ask(seat, connect(seat)); }
  /// Until this rank is in; asks again where the connection was dropped before. Throws EnvironmentError when
  /// it is refused or the other end does not know the secret, CommunicationError when there is no answer.
  [[nodiscard]] Socket finish(Asked asked) const;

 private:
  [[nodiscard]] bool enter(Asked& asked) const;
  [[nodiscard]] bool hear(Asked& asked, Reply& reply) const;

  const SocketJob& job_;
  const JobKey& key_;
  const Deadline& deadline_;
  double start_s_;
};

/// "60 s"
[[nodiscard]] std::string seconds(double value);

}  // namespace usp::comm
