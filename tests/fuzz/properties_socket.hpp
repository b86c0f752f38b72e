// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/bootstrap/handshake.hpp"
#include "comm/tcp/socket_link.hpp"
#include "properties.hpp"

#include "usp/comm/errors.hpp"

#include <algorithm>
#include <span>
#include <sys/socket.h>

/// What must hold for any bytes that arrive over a connection between ranks. True for bytes with sense.
namespace usp::fuzz {

inline std::span<const std::byte> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

/// Hello, reply and table, of a job of 4 ranks.
inline bool socket_handshake(const std::string& text) {
  const auto bytes = bytes_of(text);
  const comm::RequestState state = comm::request_state_of(bytes);
  const auto request = comm::parse_request(bytes);
  require(!request || state == comm::RequestState::complete, "a request from incomplete bytes");
  require(
      !request || (request->rank >= 0 && request->rank < request->size && request->size <= comm::max_ranks &&
                   request->port >= 0 && request->port <= comm::max_port),
      "a request out of range");
  const auto reply = comm::parse_reply(bytes);
  require(
      !reply || std::find(reply->rejection.begin(), reply->rejection.end(), '\0') != reply->rejection.end(),
      "a rejection without end");
  const auto table = comm::parse_table(bytes, 4);
  require(!table || table->size() == 4, "a table of other ranks");
  for (const comm::RankEndpoint& entry : table.value_or(std::vector<comm::RankEndpoint>{})) {
    require(entry.address.length <= sizeof entry.address.storage, "an address beyond its storage");
    (void)entry.address.text();
    (void)entry.address.loopback();
  }
  return request || reply || table;
}

inline void require_sound(const comm::JobFailure& failure, int size) {
  require(static_cast<int>(failure.exit_code) >= 1 && static_cast<int>(failure.exit_code) <= 6,
          "an exit code");
  require(failure.origin >= 0 && failure.origin < size, "an origin outside the job");
  require(failure.fault.rank >= -1 && failure.fault.rank < size, "a rank outside the job");
  require(failure.fault.missing.size() <= 64, "more missing ranks than a failure frame holds");
  for (const int rank : failure.fault.missing) require(rank >= 0 && rank < size, "a missing rank outside");
  require(failure.fault.message.size() <= 1024 && failure.fault.operation.size() <= 64,
          "a text beyond its field");
}

/// Frames one after another, with the payloads of data.
inline bool socket_frames(const std::string& text) {
  auto bytes = bytes_of(text);
  std::size_t frames = 0;
  while (true) {
    const comm::Arrival arrival = comm::parse_frame(bytes);
    if (arrival.kind == comm::Arrival::Kind::nonsense) return false;
    if (arrival.kind == comm::Arrival::Kind::part) return frames > 0;
    require(arrival.length >= sizeof(comm::Frame) && arrival.length <= bytes.size(), "a frame's length");
    require(arrival.failure.has_value() == (arrival.frame.kind == comm::Frame::Kind::failure),
            "a failure frame");
    if (arrival.failure) require_sound(comm::unpack(*arrival.failure, 4, 2), 4);
    bytes = bytes.subspan(arrival.length);
    ++frames;
    if (arrival.frame.kind != comm::Frame::Kind::data) continue;
    require(arrival.frame.bytes > 0, "a payload without bytes");
    bytes = bytes.subspan(std::min(bytes.size(), static_cast<std::size_t>(arrival.frame.bytes)));
  }
}

/// A connection with a receive of 64 bytes and a send of 32 under way: nothing is written outside the
/// receive.
inline bool socket_link(const std::string& text) {
  int ends[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "no pair of sockets");
  comm::Socket far(ends[1]);
  comm::SlotTable slots;
  comm::SocketLink link(comm::Socket(ends[0]), 0, 1, slots, 16);
  std::array<std::byte, 96> memory{};
  const comm::StridedBytes into{.data = memory.data() + 16, .run_bytes = 64},
      from{.data = memory.data(), .run_bytes = 16};
  for (const bool send : {false, true}) {
    const comm::Message message{.peer = 1,
                                .send = send,
                                .tag = 3,
                                .operation = "kv_exchange",
                                .regions = send ? &from : &into,
                                .region_count = 1};
    slots.grow(1);  // the receive is slot 0
    link.post(slots.of(slots.open(message, 1, 5)));
  }
  const iovec part{const_cast<char*>(text.data()), std::min(text.size(), std::size_t{1} << 16U)};
  (void)far.send(&part, 1);
  far.end_writing();
  bool sense = true;
  try {
    while (link.is_open()) link.read(i64{1} << 20);
  } catch (const comm::CommunicationError&) {
    sense = false;
  }
  const auto poison_byte = [](const std::byte& byte) { return byte == std::byte{}; };
  require(std::all_of(memory.begin(), memory.begin() + 16, poison_byte) &&
              std::all_of(memory.end() - 16, memory.end(), poison_byte),
          "bytes outside the receive");
  require(slots.requests() <= comm::max_requests_of_peer, "more requests than there is room for");
  if (const auto failure_frame = link.take_failure()) require_sound(comm::unpack(*failure_frame, 4, 2), 4);
  return sense && !text.empty();
}

}  // namespace usp::fuzz
