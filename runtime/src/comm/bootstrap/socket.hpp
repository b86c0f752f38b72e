// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/types.hpp"

#include <string>
#include <sys/socket.h>
#include <sys/uio.h>
#include <utility>
#include <vector>

/// TCP, non-blocking: what the system offers, with owners and errors of this project.
namespace usp::comm {

/// A numeric address with its port.
struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
  [[nodiscard]] bool loopback() const;
  /// All interfaces (0.0.0.0, ::): to listen at it is to listen at each.
  [[nodiscard]] bool unspecified() const;
  void set_port(int port);
  [[nodiscard]] std::string text() const;
};

/// Owns a TCP socket.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket() { close(); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  [[nodiscard]] int descriptor() const { return descriptor_; }
  [[nodiscard]] bool is_open() const { return descriptor_ >= 0; }
  void close();
  /// Sends what was given to the system, then says that nothing follows; what arrives can still be received.
  void end_writing();

  /// Bytes moved: 0 when none can be at the moment, -1 when the connection is over.
  [[nodiscard]] i64 send(const iovec* parts, int count);
  [[nodiscard]] i64 receive(const iovec* parts, int count);
  /// Something has arrived that was not received yet.
  [[nodiscard]] bool has_unread() const;
  [[nodiscard]] Address local() const;
  [[nodiscard]] Address remote() const;

 private:
  int descriptor_ = -1;
};

/// All addresses of a host, IPv4 first. Throws EnvironmentError when it has none.
[[nodiscard]] std::vector<Address> resolve(const std::string& host, int port);

/// Listens at the first of these addresses that is one of this host, port 0 a free one, and nowhere else.
/// Throws EnvironmentError when none is, or the port is taken.
[[nodiscard]] Socket listen_at(const std::vector<Address>& addresses);
[[nodiscard]] int port_of(const Socket& socket);
/// A connection that came in, or a closed socket when there is none.
[[nodiscard]] Socket accept_from(const Socket& listener);

/// Begins to connect; `error` says why there is no socket.
[[nodiscard]] Socket start_connect(const Address& address, int& error);
/// The outcome once the socket can be written: 0 or an errno.
[[nodiscard]] int connect_error(const Socket& socket);

}  // namespace usp::comm
