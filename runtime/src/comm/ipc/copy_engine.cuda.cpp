// SPDX-License-Identifier: Apache-2.0
#include "usp/comm/copy_engine.hpp"

#include "../failure/faults.hpp"
#include "../group/data_plane.hpp"
#include "../group/ticket_table.hpp"
#include "../regions/plane_copies.hpp"
#include "peer_rates.hpp"
#include "process_sharing.hpp"

#include "usp/base/error.hpp"
#include "usp/device/check.cuda.hpp"
#include "usp/device/device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace usp::comm {
namespace {

/// An event as another thread of this process knows it, or another process.
struct EventName {
  device::EventHandle handle = nullptr;
  cudaIpcEventHandle_t shared{};
};

/// Message of a sender to its receiver. Its pointers are valid among threads of one process only; between
/// processes a second message carries the regions.
struct ReadyToSend {
  const StridedBytes* regions = nullptr;
  i64 region_count = 0;
  i64 bytes = 0;
  EventName ready;  ///< the sender's compute stream has filled the regions
};

/// Reply of the receiver.
struct Done {
  EventName event;  ///< recorded after the regions have been read
};

/// The messages that go with a payload, in this order: from the sender, from it (between processes), from the
/// receiver, from the sender: that it has enqueued what waits for the receipt's event.
enum class Control : std::uint8_t { ready_to_send, regions, done, ack };
constexpr i64 control_kinds = 4;

/// An event that signals both ends of a message that its regions have been read. It is recorded again, or
/// destroyed, only once the sender has said that its stream waits for it, and this rank's stream waits for it
/// too: each does so when it likes, and would then wait for another message.
struct DoneEvent {
  device::Event event;
  bool sender_waits = true;
  bool receiver_waits = true;
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
  ReadyToSend rts;
  Done done;
  DoneEvent* read = nullptr;         ///< of a receive whose copy has been enqueued
  std::vector<SharedRegion> shared;  ///< between processes: the sender's regions
  std::byte ack{};
  StridedBytes rts_region, regions_region, done_region, ack_region;
  Ticket rts_ticket = -1, regions_ticket = -1, done_ticket = -1;
  device::Event mark;  ///< where the compute stream stood when this end was posted

  InFlight(int device, device::EventUse use) : mark(device, use) {
    rts_region.data = reinterpret_cast<std::byte*>(&rts);
    rts_region.run_bytes = sizeof rts;
    done_region.data = reinterpret_cast<std::byte*>(&done);
    done_region.run_bytes = sizeof done;
    ack_region.data = &ack;
    ack_region.run_bytes = 1;
  }
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  /// The control message of a kind: the same peer, operation and tick.
  [[nodiscard]] Message control(Control kind) {
    regions_region.data = reinterpret_cast<std::byte*>(shared.data());
    regions_region.run_bytes = static_cast<i64>(shared.size() * sizeof(SharedRegion));
    Message m = message;
    m.send = message.send != (kind == Control::done);
    m.tag = control_kinds * message.tag + static_cast<i64>(kind);
    m.regions = kind == Control::ready_to_send ? &rts_region
                : kind == Control::regions     ? &regions_region
                : kind == Control::done        ? &done_region
                                               : &ack_region;
    m.region_count = 1;
    return m;
  }
};

/// UUID of a device, which processes may number differently.
[[nodiscard]] cudaUUID_t identity(int device) {
  cudaDeviceProp p;
  device::check_cuda(cudaGetDeviceProperties(&p, device), "cudaGetDeviceProperties");
  return p.uuid;
}

/// This process's number of a peer's device, out of all that it sees.
[[nodiscard]] int number_of(const cudaUUID_t& device, int peer, const std::vector<cudaUUID_t>& visible) {
  for (std::size_t i = 0; i < visible.size(); ++i)
    if (std::memcmp(&visible[i], &device, sizeof device) == 0) return static_cast<int>(i);
  throw EnvironmentError(
      fmt::format("the GPU of rank {} is not visible here, so copies to it would go through the host; let "
                  "every process see all GPUs (CUDA_VISIBLE_DEVICES)",
                  peer));
}

class CopyEngineCommunicator final : public DataPlaneCommunicator {
 public:
  template <class Control>
  CopyEngineCommunicator(Control&& control, const device::Stream& compute)
      : DataPlaneCommunicator(std::forward<Control>(control)), compute_(compute), imports_(compute.device()) {
    connect();
  }
  ~CopyEngineCommunicator() override {
    try {
      const device::DeviceScope scope(compute_.device());
      for (DoneEvent& one : done_events_)
        if (!one.sender_waits) control().wait(one.ack_ticket);
      for (const device::Stream& stream : copies_) stream.synchronize();
    } catch (...) {
      // The job has already failed and the error has been reported.
    }
  }
  CopyEngineCommunicator(const CopyEngineCommunicator&) = delete;
  CopyEngineCommunicator& operator=(const CopyEngineCommunicator&) = delete;

  [[nodiscard]] const char* name() const override { return "copy_engine"; }
  void post(const Message* messages, i64 count, Ticket* tickets) override;
  void wait(Ticket ticket) override;
  [[nodiscard]] bool test(Ticket ticket) override;
  [[nodiscard]] std::vector<std::string> notes() const override { return notes_; }
  void progress() override;
  void reserve(i64 messages, i64 regions) override;
  [[nodiscard]] std::unique_ptr<Communicator> group(const std::vector<int>& ranks) override;

 private:
  void connect();
  [[nodiscard]] EventName name_of(const device::Event& event) const;
  [[nodiscard]] device::EventHandle handle_of(const EventName& event);
  void import_regions(InFlight& end);
  [[nodiscard]] DoneEvent& free_done_event();
  void open(const Message& message, Ticket ticket);
  void fetch(InFlight& end);
  void finish(InFlight& end, Ticket ticket);

  const device::Stream& compute_;
  std::vector<std::string> notes_;
  bool processes_ = false;  ///< ranks are processes
  device::EventUse use_ = device::EventUse::order;
  Exports exports_;
  Imports imports_;
  std::vector<StridedBytes> imported_;
  std::deque<device::Stream> copies_;  ///< per peer that sends
  std::deque<DoneEvent> done_events_;
  TicketTable<InFlight> ends_;
  std::vector<Ticket> receiving_;  ///< posted receives whose copy has not been enqueued
};

void CopyEngineCommunicator::connect() {
  const std::string_view kind = control().name();
  if (kind != "threads" && kind != "serial" && kind != "mpi" && kind != "sockets")
    throw UsageError(fmt::format(
        "copy engines need ranks that are threads of one process or processes of one host, not '{}'", kind));
  processes_ = kind == "mpi" || kind == "sockets";
  use_ = processes_ ? device::EventUse::interprocess : device::EventUse::order;
  const int mine = compute_.device();
  const device::DeviceScope scope(mine);
  std::vector<cudaUUID_t> visible;
  for (int i = 0; i < device::device_count(); ++i) visible.push_back(identity(i));
  const cudaUUID_t me = visible.at(static_cast<std::size_t>(mine));
  std::vector<cudaUUID_t> devices(static_cast<std::size_t>(size()));
  all_gather(&me, devices.data(), sizeof me);
  std::vector<bool> same_device;
  for (int peer = 0; peer < size(); ++peer) {
    const int number = number_of(devices[static_cast<std::size_t>(peer)], peer, visible);
    device::enable_peer_access(mine, number);
    same_device.push_back(number == mine);
    copies_.emplace_back(mine);
  }
  barrier();  // memory may be opened and copied once both directions are open
  if (processes_ && size() > 1) notes_ = rate_notes(rank(), measure_peer_rates(control(), mine, same_device));
}

/// Returns an event whose last use both ends have acknowledged, or a new one.
DoneEvent& CopyEngineCommunicator::free_done_event() {
  for (DoneEvent& one : done_events_) {
    if (!one.sender_waits) one.sender_waits = control().test(one.ack_ticket);
    if (one.sender_waits && one.receiver_waits) return one;
  }
  return done_events_.emplace_back(compute_.device(), use_);
}

EventName CopyEngineCommunicator::name_of(const device::Event& event) const {
  EventName name;
  name.handle = event.get();
  if (processes_) name.shared = share(event);
  return name;
}

device::EventHandle CopyEngineCommunicator::handle_of(const EventName& event) {
  return processes_ ? imports_.event(event.shared) : event.handle;
}

void CopyEngineCommunicator::reserve(i64 messages, i64 /*regions*/) {
  const device::DeviceScope scope(compute_.device());
  control().reserve(control_kinds * messages, control_kinds * messages);
  receiving_.reserve(static_cast<std::size_t>(messages));
  ends_.reserve(messages, compute_.device(), use_);
}

void CopyEngineCommunicator::post(const Message* messages, i64 count, Ticket* tickets) {
  const device::DeviceScope scope(compute_.device());
  for (i64 i = 0; i < count; ++i) {
    check_peer(messages[i]);
    tickets[i] = ends_.open([this](i64 size) { reserve(size, 0); });
    open(messages[i], tickets[i]);
  }
  progress();
}

void CopyEngineCommunicator::open(const Message& message, Ticket ticket) {
  InFlight& end = ends_[ticket];
  end.message = message;
  end.bytes = message.bytes();
  end.state = end.bytes == 0 ? InFlight::State::done : InFlight::State::open;
  if (end.bytes == 0) return;
  end.mark.record(compute_.get());
  const Message rts = end.control(Control::ready_to_send);
  if (!message.send) {
    control().post(&rts, 1, &end.rts_ticket);
    receiving_.push_back(ticket);
    return;
  }
  end.rts = {message.regions, message.region_count, end.bytes, name_of(end.mark)};
  control().post(&rts, 1, &end.rts_ticket);
  if (processes_) {
    end.shared.clear();
    for (i64 i = 0; i < message.region_count; ++i)
      end.shared.push_back(message.regions[i].bytes() > 0 ? exports_.region(message.regions[i])
                                                          : SharedRegion{});
    const Message regions = end.control(Control::regions);
    control().post(&regions, 1, &end.regions_ticket);
  }
  const Message done_message = end.control(Control::done);
  control().post(&done_message, 1, &end.done_ticket);
}

/// Between processes: the sender's regions, as this process reaches them.
void CopyEngineCommunicator::import_regions(InFlight& end) {
  end.shared.resize(static_cast<std::size_t>(end.rts.region_count));
  const Message regions = end.control(Control::regions);
  control().post(&regions, 1, &end.regions_ticket);
  control().wait(end.regions_ticket);
  imported_.clear();
  for (const SharedRegion& region : end.shared)
    if (region.shape.bytes() > 0 && region.shape.data != nullptr)
      imported_.push_back(imports_.region(region));
  end.rts.regions = imported_.data();
  end.rts.region_count = static_cast<i64>(imported_.size());
}

/// After the offer: enqueues the copy and sends its event to the sender.
void CopyEngineCommunicator::fetch(InFlight& end) {
  const ReadyToSend& rts = end.rts;
  const auto peer = static_cast<std::size_t>(end.message.peer);
  if (rts.bytes != end.bytes) {
    const CommunicationFault fault = size_fault(end.message, rank(), end.message.peer, end.bytes, rts.bytes);
    control().abort(fault);
    throw CommunicationError(fault);
  }
  const device::StreamHandle copies = copies_[peer].get();
  if (processes_) import_regions(end);
  device::wait_for(copies, handle_of(rts.ready));
  device::wait_for(copies, end.mark.get());
  Message from = end.message;
  from.regions = rts.regions;
  from.region_count = rts.region_count;
  enqueue_copies(from, end.message, copies);
  DoneEvent& copied = free_done_event();
  copied.event.record(copies);
  copied.sender_waits = copied.receiver_waits = false;
  end.read = &copied;
  Message ack = end.control(Control::ack);
  ack.regions = &copied.ack_region;
  control().post(&ack, 1, &copied.ack_ticket);
  end.done.event = name_of(copied.event);
  const Message done_message = end.control(Control::done);
  control().post(&done_message, 1, &end.done_ticket);
}

void CopyEngineCommunicator::progress() {
  const device::DeviceScope scope(compute_.device());
  control().progress();
  std::erase_if(receiving_, [&](Ticket ticket) {
    InFlight& end = ends_[ticket];
    if (!control().test(end.rts_ticket)) return false;
    fetch(end);
    return true;
  });
}

void CopyEngineCommunicator::wait(Ticket ticket) {
  const device::DeviceScope scope(compute_.device());
  InFlight& end = ends_.of(ticket);
  if (end.state == InFlight::State::open && !end.message.send) {
    const auto at = std::find(receiving_.begin(), receiving_.end(), ticket);
    if (at != receiving_.end()) {
      receiving_.erase(at);
      control().wait(end.rts_ticket);
      fetch(end);
    }
  } else if (end.state == InFlight::State::open) {
    progress();  // the peer may wait for an offer of its own to be taken
    control().wait(end.done_ticket);
  }
  finish(end, ticket);
}

bool CopyEngineCommunicator::test(Ticket ticket) {
  const device::DeviceScope scope(compute_.device());
  InFlight& end = ends_.of(ticket);
  progress();
  if (end.state == InFlight::State::open) {
    const bool waiting = end.message.send
                             ? !control().test(end.done_ticket)
                             : std::find(receiving_.begin(), receiving_.end(), ticket) != receiving_.end();
    if (waiting) return false;
  }
  finish(end, ticket);
  return true;
}

/// Both ends know of the copy: orders the compute stream after it.
void CopyEngineCommunicator::finish(InFlight& end, Ticket ticket) {
  if (end.state == InFlight::State::open) {
    // Small control sends complete where they are taken; the payload they announce is ordered by events.
    control().wait(end.message.send ? end.rts_ticket : end.done_ticket);
    if (end.message.send && processes_) control().wait(end.regions_ticket);
    if (!end.message.send) {
      device::wait_for(compute_.get(), end.read->event.get());
      end.read->receiver_waits = true;
    } else {
      device::wait_for(compute_.get(), handle_of(end.done.event));
      // The receiver has posted its end before it sent the receipt: this does not block.
      const Message ack = end.control(Control::ack);
      Ticket sent = -1;
      control().post(&ack, 1, &sent);
      control().wait(sent);
    }
  }
  traffic().count(end.message.tick, end.message.peer, end.message.send, end.bytes);
  ends_.close(ticket);
}

std::unique_ptr<Communicator> CopyEngineCommunicator::group(const std::vector<int>& ranks) {
  std::unique_ptr<Communicator> part = control().group(ranks);
  if (part == nullptr) return nullptr;
  return std::make_unique<CopyEngineCommunicator>(std::move(part), compute_);
}

}  // namespace

std::unique_ptr<Communicator> make_copy_engine_communicator(Communicator& control,
                                                            const device::Stream& compute) {
  return std::make_unique<CopyEngineCommunicator>(control, compute);
}

}  // namespace usp::comm
