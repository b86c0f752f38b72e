// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "properties_socket.hpp"

#include <netinet/in.h>

/// What ranks say to one another, as the fuzz targets begin with. Plain bytes in the order of the machine.
namespace usp::fuzz {

template <class T>
inline std::string bytes_as_text(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

inline std::vector<std::string> handshake_seeds() {
  const comm::JobKey key("0123456789abcdef", 4, 9);
  comm::Nonce nonce;
  nonce.fill(std::byte{0x5a});
  const comm::HandshakeRequest request{
      .size = 4, .rank = 2, .port = 4711, .digest = 9, .secured = 1, .nonce = nonce};
  std::string table;
  for (int rank = 0; rank < 4; ++rank) {
    comm::RankEndpoint entry;
    entry.port = 5000 + rank;
    if (rank == 2) {
      entry.address.storage.ss_family = AF_INET;
      entry.address.length = sizeof(sockaddr_in);
    }
    table += bytes_as_text(entry);
  }
  return {bytes_as_text(request), bytes_as_text(comm::acceptance_reply(key, nonce)),
          bytes_as_text(comm::rejection_reply("rank 2 is of another job than rank 0")), table};
}

inline std::vector<std::string> frame_seeds() {
  using comm::Frame;
  const comm::FailureFrame failure_frame =
      comm::pack({{"kv_exchange", 4, 2, {1, 3}, "rank 2 failed: out of paper"}, ExitCode::internal, 2});
  const std::string payload(16, 'p');
  const auto data = [&](i64 bytes) {
    return bytes_as_text(Frame{Frame::Kind::data, 0, 5, 3, bytes}) +
           payload.substr(0, static_cast<std::size_t>(bytes));
  };
  const std::string shutdown = bytes_as_text(Frame{});
  return {
      bytes_as_text(Frame{Frame::Kind::request, 7, 5, 3, 16}) + shutdown,
      bytes_as_text(Frame{Frame::Kind::request, 7, 5, 4, 16}) + data(16) + data(9) + shutdown,
      data(3) + bytes_as_text(Frame{.kind = Frame::Kind::failure}) + bytes_as_text(failure_frame) + shutdown};
}

}  // namespace usp::fuzz
