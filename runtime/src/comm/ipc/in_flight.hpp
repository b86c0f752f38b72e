// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "peer_arena.hpp"

#include "usp/comm/communicator.hpp"
#include "usp/device/device.hpp"

#include <cuda_runtime_api.h>
#include <vector>

/// The two ends of a message of copy engines, and the control messages between them.
namespace usp::comm {

/// An event as another thread of this process knows it, or another process.
struct EventName {
  device::EventHandle handle = nullptr;
  cudaIpcEventHandle_t shared{};
};

/// Of a message, one end copies: the receiver, or of Message::push the sender. The other end offers its
/// regions. The offer's pointers are valid among threads of one process only; between processes a second
/// message carries the regions.
struct Offer {
  const StridedBytes* regions = nullptr;
  i64 region_count = 0;
  i64 bytes = 0;
  EventName ready;  ///< the compute stream of the offering rank has reached the message
};

/// Reply of the end that copies.
struct Done {
  EventName event;  ///< recorded after the copy
};

/// The messages that go with a payload, in this order: from the end that offers, from it (between processes),
/// from the end that copies, from the one that offers: it has enqueued the wait for the copy's event.
enum class Control : std::uint8_t { offer, regions, done, ack };
constexpr i64 control_kinds = 4;

/// An event that signals the end of a copy to both ends of its message. It is recorded again, or destroyed,
/// only once the offering rank has said that its stream waits for it, and this rank's stream waits for it
/// too.
struct DoneEvent {
  device::Event event;
  bool peer_waits = true;
  bool waits = true;
  std::byte ack{};
  StridedBytes ack_region{.data = &ack, .run_bytes = 1};
  Ticket ack_ticket = -1;

  DoneEvent(int device, device::EventUse use) : event(device, use) {}
  DoneEvent(const DoneEvent&) = delete;
  DoneEvent& operator=(const DoneEvent&) = delete;
};

/// One end of a message in flight.
struct InFlight {
  enum class State : std::uint8_t { open, done };
  State state = State::open;
  Message message;
  i64 bytes = 0;
  Offer offer;
  Done done;
  DoneEvent* copied = nullptr;      ///< here, and the copy has been enqueued
  std::vector<ArenaRegion> shared;  ///< between processes: the offered regions
  std::byte ack{};
  StridedBytes offer_region, regions_region, done_region, ack_region;
  Ticket offer_ticket = -1, regions_ticket = -1, done_ticket = -1;
  device::Event mark;  ///< where the compute stream stood when this end was posted

  InFlight(int device, device::EventUse use) : mark(device, use) {
    offer_region.data = reinterpret_cast<std::byte*>(&offer);
    offer_region.run_bytes = sizeof offer;
    done_region.data = reinterpret_cast<std::byte*>(&done);
    done_region.run_bytes = sizeof done;
    ack_region.data = &ack;
    ack_region.run_bytes = 1;
  }
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  /// The regions of this end are the ones that the other end copies from or into.
  [[nodiscard]] bool offers() const { return message.send != message.push; }
  /// The control message of a kind: the same peer, operation and tick. A pull and a push of one tag may
  /// cross.
  [[nodiscard]] Message control(Control kind) {
    regions_region.data = reinterpret_cast<std::byte*>(shared.data());
    regions_region.run_bytes = static_cast<i64>(shared.size() * sizeof(ArenaRegion));
    Message m = message;
    m.send = offers() != (kind == Control::done);
    m.push = false;
    m.tag = control_kinds * (2 * message.tag + (message.push ? 1 : 0)) + static_cast<i64>(kind);
    m.regions = kind == Control::offer     ? &offer_region
                : kind == Control::regions ? &regions_region
                : kind == Control::done    ? &done_region
                                           : &ack_region;
    m.region_count = 1;
    return m;
  }
};

}  // namespace usp::comm
