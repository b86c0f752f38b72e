// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/device/device.hpp"

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace usp::comm {

/// What takes the place of flags between two ranks of one process, but in CUDA graphs: the host of the end
/// that waits sees the other's event recorded first. A stream must not wait for what a thread has yet to
/// enqueue: that thread may need a lock of the driver that a call which waits for the stream holds, and
/// streams of one GPU may share a hardware queue, where a wait holds up the write that would end it.
struct EventLink {
  explicit EventLink(int device) : ready(device) {}
  device::Event ready;                                       ///< of the end that offers
  std::optional<device::Event> done;                         ///< of the end that copies, which makes it
  std::atomic<std::uint64_t> ready_count{0}, done_count{0};  ///< how often each was recorded
  std::uint64_t offers = 0, copies = 0;                      ///< uses by each end, which alone counts them
  bool by_kernel =
      false;  ///< the last offer is a flag that a kernel sets, no event; published by ready_count
};

/// The links of one rank, where it offers; ranks that are threads of one process own each other's.
struct EventBoard {
  explicit EventBoard(int ranks) : links(static_cast<std::size_t>(ranks)) {}
  std::vector<std::deque<EventLink>> links;  ///< [peer][slot]
};

}  // namespace usp::comm
