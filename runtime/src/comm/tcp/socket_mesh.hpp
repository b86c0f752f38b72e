// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../failure/deadline.hpp"
#include "socket_link.hpp"

#include <deque>
#include <poll.h>

namespace usp::comm {

/// A process's connections to all others of its job, with the messages in flight on them, and the failure of
/// how the job ended once it has. Shared by the communicators of the job and of its groups.
class SocketMesh {
 public:
  /// `sockets` are those of the rendezvous.
  SocketMesh(std::vector<Socket> sockets, int rank, const CommOptions& options);
  /// Waits for the others to get there: options.leave_s, and but a moment once the job has failed.
  ~SocketMesh();
  SocketMesh(const SocketMesh&) = delete;
  SocketMesh& operator=(const SocketMesh&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return static_cast<int>(links_.size()); }
  [[nodiscard]] const CommOptions& options() const { return options_; }

  /// Room for so many more messages in flight.
  void reserve(i64 messages);
  /// Starts a message with rank `peer` of the job; what can leave at once does after flush().
  Ticket post(const Message& message, int peer, std::uint64_t context);
  void flush();
  /// A message that was posted and not closed.
  [[nodiscard]] SocketSlot& slot(Ticket ticket) { return slots_.of(ticket); }
  void close(Ticket ticket) { slots_.close(ticket); }
  /// Until the message is complete.
  void wait(const SocketSlot& slot);
  /// Sends and receives what fits at once; throws the failure of the job once there is one.
  void poll();
  /// Throws the failure of the job, if there is one.
  void check();

  /// Reports to all ranks, unless the job is over already; the job ends with `exit_code`.
  void broadcast_failure(const CommunicationFault& fault, ExitCode exit_code);
  /// Throws the failure of the job. Waits first for reports that crossed: the lowest rank's wins.
  [[noreturn]] void raise();
  [[nodiscard]] bool aborted() const { return failure_.has_value(); }
  [[nodiscard]] ExitCode exit_code() const { return failure_->exit_code; }
  /// Sends that this rank is done, and the failure if there is one, and waits until all are done and received
  /// it, or until no rank has sent a byte for so long; false then. Once.
  bool leave(double limit_s);

 private:
  void advance(i64 limit, int timeout_ms);
  void move(SocketLink& link, int peer, short events, i64 limit);
  void publish_failure(const CommunicationFault& fault, ExitCode exit_code);
  void receive_failure(const FailureFrame& failure_frame, int sender);
  void mark_lost(int peer);
  void report_lost();
  void send_trailers();
  [[nodiscard]] bool is_done() const;
  [[nodiscard]] i64 moved() const;
  void stop();
  [[nodiscard]] bool all_left() const;
  [[noreturn]] void report_left(const SocketSlot& slot);
  [[noreturn]] void report_late(const SocketSlot& slot);
  [[noreturn]] void fail(const CommunicationFault& fault);

  int rank_;
  CommOptions options_;
  SlotTable slots_;
  std::deque<SocketLink> links_;  ///< by rank; its own is closed
  std::vector<pollfd> watched_;
  std::optional<JobFailure> failure_;
  bool failure_is_final_ = false;  ///< the failure report is final
  /// First peer whose connection closed early, until another rank reports the reason or time is up.
  struct Lost {
    int peer;
    Deadline patience;
  };
  std::optional<Lost> lost_;
  std::optional<int> forwarded_origin_;  ///< origin of the report that was sent to all
  bool sent_shutdown_ = false;
  bool left_ = false;
};

}  // namespace usp::comm
