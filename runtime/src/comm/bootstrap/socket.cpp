// SPDX-License-Identifier: Apache-2.0
#include "socket.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <system_error>
#include <unistd.h>

namespace usp::comm {
namespace {

[[nodiscard]] std::string system_text(int error) {
  return std::generic_category().message(error);
}

[[nodiscard]] const sockaddr* as_sockaddr(const Address& address) {
  return reinterpret_cast<const sockaddr*>(&address.storage);
}

template <class T>
[[nodiscard]] T storage_as(const Address& address) {
  T value;
  std::memcpy(&value, &address.storage, sizeof value);
  return value;
}

/// An IPv4 address that an IPv6 socket reports is written as IPv4.
void unmap(Address& address) {
  if (address.storage.ss_family != AF_INET6) return;
  const auto six = storage_as<sockaddr_in6>(address);
  if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr) == 0) return;
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_port = six.sin6_port;
  std::memcpy(&four.sin_addr, &six.sin6_addr.s6_addr[12], sizeof four.sin_addr);
  address = {};
  std::memcpy(&address.storage, &four, sizeof four);
  address.length = sizeof four;
}

template <class Ask>
[[nodiscard]] Address ask_address(const Ask& ask, int descriptor) {
  Address address;
  address.length = sizeof address.storage;
  if (ask(descriptor, reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0) return {};
  unmap(address);
  return address;
}

void set_option(int descriptor, int level, int option, int value) {
  if (setsockopt(descriptor, level, option, &value, sizeof value) != 0)
    throw EnvironmentError("a TCP socket refuses an option: " + system_text(errno));
}

/// Messages leave at once, and a program that this one starts does not inherit the connection.
void prepare(int descriptor) {
  set_option(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
}

[[nodiscard]] Socket make_socket(int family) {
  return Socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

[[nodiscard]] bool try_listen(Socket& socket, const Address& address) {
  socket = make_socket(address.storage.ss_family);
  if (!socket.is_open()) return false;
  set_option(socket.descriptor(), SOL_SOCKET, SO_REUSEADDR, 1);  // an earlier job's connections linger
  return ::bind(socket.descriptor(), as_sockaddr(address), address.length) == 0 &&
         ::listen(socket.descriptor(), SOMAXCONN) == 0;
}

/// What a call that moved nothing means.
[[nodiscard]] i64 outcome(ssize_t moved) {
  if (moved > 0) return moved;
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}

[[nodiscard]] msghdr message_of(const iovec* parts, int count) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = static_cast<std::size_t>(count);
  return message;
}

}  // namespace

bool Address::loopback() const {
  if (storage.ss_family == AF_INET)
    return (ntohl(storage_as<sockaddr_in>(*this).sin_addr.s_addr) >> 24U) == 127;
  if (storage.ss_family != AF_INET6) return false;
  const auto six = storage_as<sockaddr_in6>(*this);
  return IN6_IS_ADDR_LOOPBACK(&six.sin6_addr) != 0;
}

bool Address::unspecified() const {
  Address plain = *this;
  unmap(plain);
  if (plain.storage.ss_family == AF_INET) return storage_as<sockaddr_in>(plain).sin_addr.s_addr == INADDR_ANY;
  if (plain.storage.ss_family != AF_INET6) return false;
  const auto six = storage_as<sockaddr_in6>(plain);
  return IN6_IS_ADDR_UNSPECIFIED(&six.sin6_addr) != 0;
}

void Address::set_port(int port) {
  const in_port_t value = htons(static_cast<std::uint16_t>(port));
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  std::memcpy(reinterpret_cast<std::byte*>(&storage) + offsetof(sockaddr_in, sin_port), &value, sizeof value);
}

std::string Address::text() const {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (getnameinfo(as_sockaddr(*this), length, host.data(), host.size(), port.data(), port.size(),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "an address without a name";
  return fmt::format("{} port {}", host.data(), port.data());
}

void Socket::close() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

void Socket::end_writing() {
  (void)::shutdown(descriptor_, SHUT_WR);
}

i64 Socket::send(const iovec* parts, int count) {
  const msghdr message = message_of(parts, count);
  return outcome(::sendmsg(descriptor_, &message, MSG_NOSIGNAL | MSG_DONTWAIT));
}

i64 Socket::receive(const iovec* parts, int count) {
  msghdr message = message_of(parts, count);
  const ssize_t moved = ::recvmsg(descriptor_, &message, MSG_DONTWAIT);
  return moved == 0 ? -1 : outcome(moved);
}

bool Socket::has_unread() const {
  std::byte first{};
  return is_open() && ::recv(descriptor_, &first, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

Address Socket::local() const {
  return ask_address(::getsockname, descriptor_);
}

Address Socket::remote() const {
  return ask_address(::getpeername, descriptor_);
}

std::vector<Address> resolve(const std::string& host, int port) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  // A bare container may have no /etc/hosts; this name is the loopback everywhere (RFC 6761).
  const char* const name = host == "localhost" ? "127.0.0.1" : host.c_str();
  const int error = getaddrinfo(name, nullptr, &wanted, &found);
  if (error != 0)
    throw EnvironmentError(
        fmt::format("the host '{}' has no address ({}); MASTER_ADDR must name the host of rank 0", host,
                    gai_strerror(error)));
  std::vector<Address> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    Address address;
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    address.length = one->ai_addrlen;
    address.set_port(port);
    addresses.push_back(address);
  }
  freeaddrinfo(found);
  std::stable_partition(addresses.begin(), addresses.end(),
                        [](const Address& address) { return address.storage.ss_family == AF_INET; });
  return addresses;
}

Socket listen_at(const std::vector<Address>& addresses) {
  Socket socket;
  int error = EADDRNOTAVAIL;
  for (const Address& address : addresses) {
    if (try_listen(socket, address)) return socket;
    error = errno;
    if (error == EADDRINUSE) break;
  }
  const std::string where = addresses.empty() ? "no address" : addresses.front().text();
  if (error == EADDRNOTAVAIL)
    throw EnvironmentError(
        where +
        " is no address of this host, where rank 0 should listen at MASTER_ADDR; start "
        "rank 0 on the host of MASTER_ADDR, and let MASTER_ADDR name one of its interfaces");
  throw EnvironmentError(
      fmt::format("{} of this host cannot be listened at ({}), where the other ranks look for rank 0; choose "
                  "a free port with USP_MASTER_PORT, the same for all ranks",
                  where, system_text(error)));
}

int port_of(const Socket& socket) {
  const Address address = socket.local();
  return ntohs(storage_as<sockaddr_in>(address).sin_port);
}

Socket accept_from(const Socket& listener) {
  Socket socket(::accept4(listener.descriptor(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket.is_open()) prepare(socket.descriptor());
  return socket;
}

Socket start_connect(const Address& address, int& error) {
  Socket socket = make_socket(address.storage.ss_family);
  error = socket.is_open() ? 0 : errno;
  if (error != 0) return {};
  prepare(socket.descriptor());
  if (::connect(socket.descriptor(), as_sockaddr(address), address.length) != 0 && errno != EINPROGRESS) {
    error = errno;
    return {};
  }
  return socket;
}

int connect_error(const Socket& socket) {
  int error = 0;
  socklen_t length = sizeof error;
  if (getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  // A port of the range that systems hand out may be handed to the very socket that looks for it.
  const Address here = socket.local(), there = socket.remote();
  const bool itself = here.length == there.length && here.length > 0 &&
                      std::memcmp(&here.storage, &there.storage, here.length) == 0;
  return error == 0 && itself ? ECONNREFUSED : error;
}

}  // namespace usp::comm
