// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/sockets.hpp"

#include <arpa/inet.h>
#include <exception>
#include <functional>
#include <netinet/in.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace usp::test {

/// An unused port.
inline int free_port() {
  const int probe = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const bool found = ::bind(probe, reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
                     ::getsockname(probe, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  ::close(probe);
  return found ? ntohs(address.sin_port) : 0;
}

/// Ranks that meet over sockets as processes do, each on a thread of this one. Returns what each threw.
inline std::vector<std::exception_ptr> run_socket_threads(
    int ranks, const comm::CommOptions& options, const std::function<void(comm::Communicator&)>& body) {
  const int port = free_port();
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const auto communicator =
            comm::make_socket_communicator({rank, ranks, "127.0.0.1", port, 7}, options);
        body(*communicator);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

}  // namespace usp::test
