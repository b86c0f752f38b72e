// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/errors.hpp"
#include "usp/comm/message.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

/// Ranks that talk to one another. One point-to-point primitive carries every exchange: a hop, an
/// all-to-all-v and a gather are lists of messages.
namespace usp::comm {

/// Names a posted message until it has been waited for.
using Ticket = std::int32_t;

struct CommOptions {
  double watchdog_s = 60;           ///< a wait that lasts longer ends the job
  i64 chunk_bytes = i64{1} << 30;   ///< greatest single transfer that reaches the driver
  std::optional<double> start_s{};  ///< how long processes wait for one another to start; else watchdog_s
  bool trust_network = false;       ///< sockets: a job without a secret may meet beyond loopback
  double leave_s = 3;               ///< sockets: the last communicator's end waits so long for silent ranks
  /// Asked about every tenth of a second by a wait for other ranks, on the waiting rank's thread; true ends
  /// the job. For signals that a host language handles between calls.
  std::function<bool()> interrupted{};
};

/// A group of ranks. Not thread-safe: one thread per rank. Host buffers.
class Communicator {
 public:
  virtual ~Communicator() = default;
  [[nodiscard]] virtual const char* name() const = 0;  ///< "serial", "threads", "mpi", ...
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  /// Starts messages; local. tickets[i] names messages[i]. A send's regions must not change, and a receive's
  /// must not be read, until waited for. A message to the rank itself is refused (copy instead). Empty
  /// messages are legal and complete at once. Throws CommunicationError when the sizes of both ends differ
  /// (here or when waited for). Allocates nothing of this project's own once reserve() has covered what is in
  /// flight.
  virtual void post(const Message* messages, i64 count, Ticket* tickets) = 0;
  /// Blocks until the message is complete; returns the bytes that memcpy, MPI or the driver moved for it.
  /// Throws CommunicationError after the watchdog time, naming operation, tick and the peers that did not
  /// arrive, or when the job was aborted elsewhere.
  virtual i64 wait(Ticket ticket) = 0;
  /// The same when complete (the ticket is then spent); nothing while it is not.
  [[nodiscard]] virtual std::optional<i64> test(Ticket ticket) = 0;
  /// What post() and wait() enqueue on a GPU's stream may be captured into a CUDA graph, and replayed: they
  /// then exchange nothing with other ranks but what the graph holds.
  [[nodiscard]] virtual bool capturable() const { return false; }
  /// Lets messages in flight advance; cheap, never blocks. Throws when the job was aborted elsewhere.
  virtual void progress() = 0;
  /// Room for so many messages in flight with so many regions in all.
  virtual void reserve(i64 messages, i64 regions) = 0;

  /// How it waits for other ranks.
  [[nodiscard]] virtual const CommOptions& options() const = 0;

  /// Collective over this communicator: every rank passes the same list (of ranks of this communicator, any
  /// order; rank i of the group is ranks[i]). Null for ranks that are not in it, and for groups of one.
  /// Throws UsageError for repeated or unknown ranks, DisagreementError when the lists differ.
  [[nodiscard]] virtual std::unique_ptr<Communicator> group(const std::vector<int>& ranks) = 0;

  // Collectives; every rank calls them in the same order. Sums run in rank order on every backend. They may
  // allocate, and obey the watchdog.
  virtual void barrier() = 0;
  /// bytes of each rank, in rank order, to every rank.
  virtual void all_gather(const void* mine, void* all, i64 bytes) = 0;
  virtual void broadcast(void* data, i64 bytes, int root) = 0;
  virtual void all_reduce_sum(float* data, i64 count) = 0;
  virtual void all_reduce_sum(double* data, i64 count) = 0;
  virtual void all_reduce_sum(i64* data, i64 count) = 0;
  /// Sums size() parts of `count` each; this rank keeps part rank().
  virtual void reduce_scatter_sum(const float* parts, float* mine, i64 count) = 0;
  virtual void reduce_scatter_sum(const double* parts, double* mine, i64 count) = 0;

  /// Ends the job: the next call on every rank throws this fault. Idempotent; the first fault wins. On
  /// threads it returns when no peer reads or writes this rank's regions any more (so does a throw out of any
  /// call here): a rank that leaves with messages in flight calls it before it frees their memory.
  virtual void abort(const CommunicationFault& fault) = 0;
};

/// One rank, no peers.
[[nodiscard]] std::unique_ptr<Communicator> make_serial_communicator();

}  // namespace usp::comm
