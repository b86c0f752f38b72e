// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "channel_offers.hpp"
#include "peer_arena.hpp"
#include "shared_flags.hpp"
#include "stall_watch.hpp"
#include "stream_flags.hpp"

#include "usp/comm/data_plane.hpp"
#include "usp/device/call_stream.hpp"
#include "usp/device/device.hpp"
#include "usp/device/plane_copy.hpp"

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

namespace usp::comm {

/// What all channels of one rank share.
struct CopyRank {
  Communicator& control;
  const device::CallStream& compute;
  bool threads = false;        ///< ranks are threads of one process
  bool gates = false;          ///< kernels may wait for copies inside their launches
  bool in_pass = false;        ///< a pass has begun, and some of its flags are to be awaited
  PeerArena* arena = nullptr;  ///< of payload
  SharedFlags flags;
  StallWatch watch;
  std::deque<device::Stream> copies;  ///< per peer
};

/// Channels by copy engines. For a bundle, the end that offers sets a flag of the other once its compute
/// stream has come to the start; the other's copy stream awaits it, copies, and sets a flag of the offering
/// end, whose compute stream awaits that. Who awaits a flag resets it: so the next pass, and every replay of
/// a graph, finds it 0, and each flag acknowledges the other.
///
/// Streams may share a hardware queue, and in a graph their order is that of its edges alone. So what a rank
/// sets comes before its waits of the same tick, also by edges: its copies wait for the flags that it sets at
/// the start, and its compute stream awaits a flag after its own copies that are due. Then ranks cannot wait
/// for one another in a circle. Ranks of one process use events instead, but in graphs (EventLink).
///
/// Receives that kernels await (ChannelEnd::gated) have a flag each in this rank's device memory, which its
/// copy stream sets to the pass's epoch: behind its own copy, or of a push behind the peer's. The gated
/// copies of a start are made in the order of the ends, one after another, so that blocks arrive in the order
/// of their lists.
///
/// A send that the kernel of the tick before completes (ChannelEnd::early) is offered by that kernel: it sets
/// the flag of the end that copies, between threads too. That end's copy waits for its own compute stream's
/// place before that tick's kernel, no longer for the kernel's end.
///
/// Small copies that nothing could hide are made by a kernel on the compute stream when they are first waited
/// for: it starts sooner than a copy engine, and needs no other stream.
class CopyChannels final : public Channels {
 public:
  CopyChannels(CopyRank& rank, const std::vector<ChannelEnd>& ends, Bundles bundles);

  void begin() override;
  void start(const ChannelStart* starts, i64 count) override;
  [[nodiscard]] std::optional<ReceiveGate> gate(std::int32_t channel) override;
  [[nodiscard]] std::optional<kernels::Completion> completion(std::int32_t channel) override;
  i64 wait(std::int32_t channel) override;
  void progress() override { rank_.watch.check(); }

 private:
  void end_job();
  void offer(Bundle& bundle);
  void join_copies(std::int32_t tick);
  void mark_compute();
  [[nodiscard]] device::EventHandle begin_of(const Bundle& bundle) const;
  void copy_exposed();
  void copy(Bundle& bundle);
  [[nodiscard]] bool copies_by_threads(const Bundle& bundle) const;
  [[nodiscard]] device::EventHandle copied(std::size_t bundle) const;
  void append_payload(std::int32_t channel);
  [[nodiscard]] Flag* gate_flag(std::size_t bundle) const;
  [[nodiscard]] Flag* ready_flag(const Bundle& bundle) const;
  void await_push(Bundle& bundle);
  [[nodiscard]] std::size_t number_of(const Bundle& bundle) const {
    return static_cast<std::size_t>(&bundle - bundles_.bundles.data());
  }
  void await_host(const std::atomic<std::uint64_t>& count, std::uint64_t expected, const Bundle& bundle);
  [[nodiscard]] Bundle& bundle_of(std::int32_t channel) {
    return bundles_.bundles[bundles_.of_channel[static_cast<std::size_t>(channel)]];
  }

  CopyRank& rank_;
  std::vector<ChannelEnd> ends_;  ///< without regions
  Bundles bundles_;
  std::vector<ChannelStart> starts_;                  ///< per channel
  std::vector<std::optional<device::Event>> copied_;  ///< per bundle that this rank's engines copy
  std::vector<i64> moved_;                            ///< per channel
  device::DeviceBuffer gates_;                        ///< a flag per bundle, if some are gated
  std::uint32_t epoch_ = 0;                           ///< of the passes, in the flags
  bool gated_ = false;                                ///< this pass has gates
  std::vector<bool> pushed_;                          ///< per bundle: a copy stream awaits the peer's push
  std::vector<bool> completed_;                       ///< per bundle: a kernel offers it
  device::EventHandle last_gated_ = nullptr;          ///< the end of the last gated copy of a start
  bool by_events_ = false;                            ///< this pass
  std::size_t awaited_ = 0;                           ///< bundles, in this pass
  std::vector<std::size_t> started_;                  ///< bundles of one start
  std::vector<Bundle*> exposed_;         ///< that were started and are to be copied by the first wait
  std::vector<std::size_t> copying_;     ///< bundles whose copies the compute stream has not waited for
  std::vector<StridedBytes> reached_;    ///< a peer's regions
  std::vector<device::Copy2d> payload_;  ///< of a bundle
  device::Event mark_;
  device::EventHandle started_at_ = nullptr;  ///< where the compute stream stood at the last start
  /// Where it stood at the start of a tick whose kernel awaits gates; of the last two, by parity.
  struct GatedTick {
    std::int32_t tick = -1;
    std::optional<device::Event> mark;
  };
  std::array<GatedTick, 2> gated_ticks_;
  FlagOperations operations_;
};

}  // namespace usp::comm
