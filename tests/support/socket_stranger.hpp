// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/bootstrap/acceptor.hpp"
#include "comm/bootstrap/handshake.hpp"
#include "socket_threads.hpp"

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <poll.h>
#include <stdexcept>
#include <string>

/// Jobs whose ranks start one by one, and somebody who connects to them and says what it likes. Nothing here
/// waits for a time: a limit that runs out fails the test.
namespace usp::test {

constexpr double limit_s = 120;
inline const std::string job_secret = "c1b0d7aa5e2f49838c6d0e1f2a3b4c5d";

inline comm::SocketJob secured_job(int rank, int ranks, int port) {
  return {.rank = rank, .size = ranks, .host = "127.0.0.1", .port = port, .digest = 7, .secret = job_secret};
}

inline std::string text_of(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  }
  return "";
}

/// Each rank on a thread of its own, from the moment it is started.
class StartedRanks {
 public:
  ~StartedRanks() { join(); }
  void start(const comm::SocketJob& job, const std::function<void(comm::Communicator&)>& body = &barrier) {
    threads_[job.rank] = std::thread([this, job, body] {
      try {
        body(*comm::make_socket_communicator(job, {.watchdog_s = limit_s}));
      } catch (...) {
        errors_[static_cast<std::size_t>(job.rank)] = std::current_exception();
      }
    });
  }
  /// What rank `rank` threw, once it has ended; empty where it did not.
  [[nodiscard]] std::string error(int rank) {
    if (threads_[rank].joinable()) threads_[rank].join();
    return text_of(errors_[static_cast<std::size_t>(rank)]);
  }

 private:
  static void barrier(comm::Communicator& communicator) { communicator.barrier(); }
  void join() {
    for (auto& [rank, thread] : threads_)
      if (thread.joinable()) thread.join();
  }
  std::map<int, std::thread> threads_;
  std::array<std::exception_ptr, 8> errors_;
};

/// A connection to a port.
class Stranger {
 public:
  explicit Stranger(int port, const std::string& host = "127.0.0.1") {
    const comm::Deadline deadline(limit_s);
    while (!socket_.is_open() && !deadline.over()) {
      try_once(port, host);
      std::this_thread::yield();
    }
    if (!socket_.is_open()) throw std::runtime_error("nobody listens");
  }
  explicit Stranger(comm::Socket socket) : socket_(std::move(socket)) {}

  template <class T>
  void say(const T& value, std::size_t bytes = sizeof(T)) {
    (void)comm::send_whole(socket_, &value, static_cast<i64>(bytes), comm::StartWatch(limit_s));
  }
  /// None when the other end closed.
  [[nodiscard]] std::optional<comm::HandshakeReply> hear() {
    std::array<std::byte, sizeof(comm::HandshakeReply)> bytes;
    if (!hear(bytes.data(), bytes.size())) return std::nullopt;
    return comm::parse_reply(bytes);
  }
  [[nodiscard]] bool hear(void* data, std::size_t bytes) {
    const comm::ReadResult result =
        comm::receive_whole(socket_, data, static_cast<i64>(bytes), comm::StartWatch(limit_s));
    if (result == comm::ReadResult::timed_out)
      throw std::runtime_error("no word, and no end of the connection");
    return result == comm::ReadResult::complete;
  }
  /// Waits until the other end closes.
  [[nodiscard]] bool closed() {
    std::byte any;
    return !hear(&any, sizeof any);
  }

 private:
  void try_once(int port, const std::string& host) {
    int error = 0;
    socket_ = comm::start_connect(comm::resolve(host, port).front(), error);
    while (socket_.is_open()) {
      pollfd one{socket_.descriptor(), POLLOUT, 0};
      if (::poll(&one, 1, 1000) <= 0) continue;
      if (comm::connect_error(socket_) != 0) socket_ = {};
      return;
    }
  }
  comm::Socket socket_;
};

/// What rank `rank` of a job of `ranks` says first.
inline comm::HandshakeRequest request_of(int rank, int ranks) {
  return {.size = ranks, .rank = rank, .port = 1, .digest = 7, .secured = 1, .nonce = comm::random_nonce()};
}

inline std::string rejection_of(const std::optional<comm::HandshakeReply>& reply) {
  return reply ? reply->rejection.data() : "the connection closed";
}

}  // namespace usp::test
