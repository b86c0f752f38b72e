// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../bootstrap/socket.hpp"
#include "../failure/job_failure.hpp"
#include "socket_frame.hpp"
#include "socket_slot.hpp"

#include <array>
#include <optional>
#include <vector>

namespace usp::comm {

/// The connection to one peer. A receive asks for its payload, and a send that is asked for sends it: nothing
/// arrives that has no place yet, whatever the order in which both ends post. Payloads travel in parts, from
/// and to where they lie. Never blocks.
class SocketLink {
 public:
  /// Of rank `mine` to rank `peer` of the job, whose slots are in `slots`. Parts have at most `part_bytes`.
  SocketLink(Socket socket, int mine, int peer, SlotTable& slots, i64 part_bytes);

  [[nodiscard]] int descriptor() const { return socket_.descriptor(); }
  [[nodiscard]] bool is_open() const { return socket_.is_open(); }
  [[nodiscard]] bool has_to_write() const;
  /// The peer has said that it is done.
  [[nodiscard]] bool peer_closed() const { return peer_closed_; }
  /// Bytes of payload that moved so far, both ways.
  [[nodiscard]] i64 payload() const { return payload_; }
  /// All bytes that moved so far, both ways: that the peer still lives.
  [[nodiscard]] i64 moved() const { return moved_; }

  /// Puts an open slot on its way. Throws CommunicationError when the sizes of both ends differ.
  void post(SocketSlot& slot);
  /// Room for so many requests that come before their send is posted.
  void reserve(i64 requests);
  /// Moves about `limit` bytes at most, as far as the connection takes and gives them. A connection that is
  /// over is closed. reads: throws CommunicationError for sizes that differ and for bytes without sense.
  void write(i64 limit);
  void read(i64 limit);
  /// The failure report that arrived, once.
  [[nodiscard]] std::optional<FailureFrame> take_failure() {
    return std::exchange(received_failure_, std::nullopt);
  }

  /// Touches no slot and no region any more: what is half sent is copied, what arrives is dropped.
  void stop();
  void send_failure(const FailureFrame& failure_frame);
  void send_shutdown();
  /// Once everything is written: nothing follows, though the peer's words are still heard.
  void end_writing();

 private:
  struct Request {
    std::uint64_t context;
    i64 tag;
    i64 bytes;
    std::uint32_t id;
  };
  void stage();
  void stage_part();
  [[nodiscard]] bool staged(i64 limit);
  void put(const void* data, std::size_t bytes);
  void sent(i64 bytes);
  void fill(i64 limit);
  void parse();
  void take(const Frame& frame);
  void take_request(const Frame& frame);
  void take_data(const Frame& frame);
  void arrived(i64 bytes);
  void match(SocketSlot& send, const Request& request);
  [[noreturn]] void refuse_bytes() const;
  [[noreturn]] void refuse_flood() const;

  Socket socket_;
  int mine_;
  int peer_;
  SlotTable& slots_;
  i64 part_bytes_;
  i64 payload_ = 0;
  i64 moved_ = 0;

  SlotQueue asking_;               ///< receives whose request has not left
  SlotQueue unasked_;              ///< sends without a request yet
  SlotQueue ready_;                ///< sends that were asked for
  std::vector<Request> requests_;  ///< that came before their send
  std::array<std::byte, 8192> out_;
  std::size_t out_begin_ = 0, out_end_ = 0;
  SocketSlot* part_ = nullptr;  ///< whose payload follows out_
  i64 part_left_ = 0;
  std::vector<std::byte> trailer_;  ///< follow everything else
  std::size_t trailer_sent_ = 0;

  std::array<std::byte, 16384> in_;
  std::size_t in_begin_ = 0, in_end_ = 0;
  SocketSlot* filling_ = nullptr;  ///< whose payload comes next; null drops it
  i64 filling_left_ = 0;
  std::optional<FailureFrame> received_failure_;
  bool stopped_ = false;
  bool peer_closed_ = false;
  bool ended_ = false;
};

}  // namespace usp::comm
