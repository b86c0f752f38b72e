// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/communicator.hpp"
#include "usp/kernels/gate.hpp"
#include "usp/schedule/rank_schedule.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace usp::kernels {
class Arena;
class Memory;
}  // namespace usp::kernels

/// What carries the payload of schedules. A pass repeats the same transfers, so that both ends connect them
/// once; a Communicator carries everything else between ranks.
namespace usp::comm {

/// One end of a transfer that every pass repeats.
struct ChannelEnd {
  int peer = 0;
  bool send = false;
  /// Where peers reach a part of memory only: the receiver's regions lie in it, and the sender copies into
  /// them; otherwise the sender's do. The same on both ends, as the next three.
  bool push = false;
  i64 tag = 0;            ///< matches both ends; unique in a pass among transfers of one direction
  std::int32_t tick = 0;  ///< in which it starts
  std::int32_t due = 0;   ///< tick at whose end it is waited for
  bool gated = false;     ///< a kernel of the receiver may await it (Channels::gate); those of one start
                          ///< come one after another, in the order of the ends
  /// A call of the tick before its start completes the payload, and both ends have room for it from then on:
  /// it may travel while the call goes on (Channels::completion).
  bool early = false;
  bool exposed = false;        ///< this end computes nothing from its start until it is waited for
  const char* operation = "";  ///< what errors name; a string literal
  i64 bytes = 0;
  i64 region_count = 0;  ///< of this end
  /// Where peers reach a part of memory only: the regions of an end that offers, in that memory. Otherwise
  /// null; start() names them.
  const StridedBytes* regions = nullptr;

  /// The other end copies from or into the regions of this one.
  [[nodiscard]] bool offers() const { return send != push; }
  /// The transfer as a message, without regions.
  [[nodiscard]] Message message() const {
    Message m;
    m.peer = peer, m.send = send, m.tag = tag, m.tick = tick, m.operation = operation;
    return m;
  }
};

/// One transfer to start: a channel, and this end's regions, valid until it was waited for.
struct ChannelStart {
  std::int32_t channel = 0;
  const StridedBytes* regions = nullptr;
  i64 region_count = 0;
};

/// How a kernel learns during its call that a receive is complete.
struct ReceiveGate {
  kernels::Gate gate;
  kernels::GateWatch watch;  ///< of the waits of a call; its `fault` is given, and is 0 until a job fails
};

/// The connected transfers of one pass on one rank, numbered from 0. A pass begins, then starts and waits for
/// every channel once. Ranks run their passes in one order, each in that of its schedule. One thread at a
/// time. Must not outlive its data plane.
class Channels {
 public:
  virtual ~Channels() = default;
  Channels() = default;
  Channels(const Channels&) = delete;
  Channels& operator=(const Channels&) = delete;

  /// A pass begins. Throws CommunicationError when the job was aborted elsewhere.
  virtual void begin() = 0;
  /// Starts transfers; on both ends in the same tick. On the host as Communicator::post; on GPUs what
  /// was enqueued on the compute stream before comes first. Throws CommunicationError where the job has
  /// failed.
  virtual void start(const ChannelStart* starts, i64 count) = 0;
  /// Of a receive (ChannelEnd::gated) between its start and its wait: what a kernel that is called next may
  /// await. All that opens the gate is under way then, on a GPU enqueued, and takes no multiprocessor; for
  /// this it may wait for peers' threads. The wait comes after that call; where the call gave up on the host,
  /// it throws CommunicationError. Empty: the wait comes before what reads the receive.
  [[nodiscard]] virtual std::optional<ReceiveGate> gate(std::int32_t /*channel*/) { return {}; }
  /// Of a send (ChannelEnd::early) before its start: what a call that comes next may set when the payload is
  /// complete, once. The transfer begins then; its start comes after that call. Empty: it begins with its
  /// start.
  [[nodiscard]] virtual std::optional<kernels::Completion> completion(std::int32_t /*channel*/) { return {}; }
  /// Ends a transfer, and returns the bytes that memcpy, MPI or the driver moved for it. On the host as
  /// Communicator::wait; on GPUs what is enqueued on the compute stream next comes after the transfer, and
  /// the thread waits for no GPU.
  virtual i64 wait(std::int32_t channel) = 0;
  /// Lets transfers advance; cheap, never blocks.
  virtual void progress() = 0;
};

/// Connects the ranks of a communicator for payload. One thread at a time, as Communicator.
class DataPlane {
 public:
  virtual ~DataPlane() = default;
  DataPlane() = default;
  DataPlane(const DataPlane&) = delete;
  DataPlane& operator=(const DataPlane&) = delete;

  [[nodiscard]] virtual const char* name() const = 0;  ///< "threads", "mpi", "copy_engine", ...
  /// The ranks, and everything between them but payload. Outlives this.
  [[nodiscard]] virtual Communicator& control() = 0;

  /// Collective. The ends of one pass on this rank, in the order of their starts; nothing of `ends` is kept.
  /// Throws CommunicationError where the two ends of a transfer differ in size (here, or when waited for).
  [[nodiscard]] virtual std::unique_ptr<Channels> connect(const std::vector<ChannelEnd>& ends) = 0;

  /// The only memory of this rank that peers copy from and into (ChannelEnd::push); null where start() may
  /// name any memory. Lent; made of `memory` at the first call, where ranks share an address space. Its
  /// reserve() is collective over control(), each rank with a count of its own, and waits until peers are
  /// done with the memory that is replaced; where no rank needs more it is one exchange of counts.
  [[nodiscard]] virtual kernels::Arena* peer_arena(kernels::Memory& memory);
  /// Device memory that it holds itself, beside the arenas of a Memory.
  [[nodiscard]] virtual i64 held_bytes() const { return 0; }
  /// What peers copy from and into.
  [[nodiscard]] virtual schedule::PeerReach reach() const { return schedule::PeerReach::all; }
  /// What start() and wait() enqueue on a GPU's stream may be captured into a CUDA graph and replayed, on all
  /// ranks alike. Not: the reason.
  [[nodiscard]] virtual std::string capture_obstacle() const = 0;
  /// Throws CommunicationError when the job has failed: also after a stream was synchronized, since a failed
  /// job lets streams go on with void results.
  virtual void check() = 0;
  /// What its making found out on this rank that the user should know, such as a slow way to a peer.
  [[nodiscard]] virtual std::vector<std::string> notes() const { return {}; }
};

/// Posts and waits for messages of a communicator, which outlives it and whose ranks are `control`'s (itself,
/// unless it carries payload for another).
[[nodiscard]] std::unique_ptr<DataPlane> make_message_data_plane(Communicator& communicator);
/// The same, and owns the communicator, a data plane of `control`.
[[nodiscard]] std::unique_ptr<DataPlane> make_message_data_plane(std::unique_ptr<Communicator> communicator,
                                                                 Communicator& control);

}  // namespace usp::comm
