// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../failure/start_watch.hpp"
#include "handshake.hpp"
#include "socket.hpp"

#include "usp/comm/sockets.hpp"

#include <vector>

namespace usp::comm {

/// A rank that asks others to let it in: the other side of Door.
class Connector {
 public:
  /// Address at which a rank listens, and the reply it gets.
  struct JoinTarget {
    int peer = 0;
    std::vector<Address> addresses;
    int port = 0;  ///< where this rank listens; 0: nowhere
    std::uint64_t digest = 0;
    bool listening = false;  ///< the peer listens already: where it does not, it has gone
  };
  /// A hello that is on its way.
  struct OpenHandshake {
    JoinTarget target;
    Socket socket;
    HandshakeRequest request;
  };
  /// `watch`: of `start_s` and some patience.
  Connector(const SocketJob& job, const JobKey& key, const StartWatch& watch, double start_s)
      : job_(job), key_(key), watch_(watch), start_s_(start_s) {}

  /// Connects to a rank that may not have started yet. Throws CommunicationError when it does not in time.
  [[nodiscard]] Socket connect(const JoinTarget& target) const;
  [[nodiscard]] OpenHandshake send_request(const JoinTarget& target, Socket socket) const;
  [[nodiscard]] OpenHandshake send_request(const JoinTarget& target) const {
    return send_request(target, connect(target));
  }
  /// Until this rank is in; asks again where the connection was dropped before. Throws EnvironmentError when
  /// it is refused or the other end does not know the secret, CommunicationError when there is no answer.
  [[nodiscard]] Socket complete(OpenHandshake handshake) const;

 private:
  [[nodiscard]] bool authenticate(OpenHandshake& handshake) const;
  [[nodiscard]] bool receive_reply(OpenHandshake& handshake, HandshakeReply& reply) const;

  const SocketJob& job_;
  const JobKey& key_;
  const StartWatch& watch_;
  double start_s_;
};

/// "60 s"
[[nodiscard]] std::string seconds(double value);

}  // namespace usp::comm
