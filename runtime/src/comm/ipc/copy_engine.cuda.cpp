// SPDX-License-Identifier: Apache-2.0
#include "usp/comm/copy_engine.hpp"

#include "../failure/backoff.hpp"
#include "../failure/faults.hpp"
#include "../failure/wait_watch.hpp"
#include "../group/data_plane.hpp"
#include "../group/ticket_table.hpp"
#include "../regions/plane_copies.hpp"
#include "in_flight.hpp"
#include "peer_arena.hpp"
#include "peer_rates.hpp"
#include "process_sharing.hpp"

#include "usp/base/error.hpp"
#include "usp/device/check.cuda.hpp"
#include "usp/device/device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace usp::comm {
namespace {

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
  CopyEngineCommunicator(Control&& control, const device::CallStream& compute)
      : DataPlaneCommunicator(std::forward<Control>(control)), compute_(compute), events_(compute.device()) {
    connect();
  }
  ~CopyEngineCommunicator() override {
    try {
      const device::DeviceScope scope(compute_.device());
      for (DoneEvent& one : done_events_)
        if (!one.peer_waits) control().wait(one.ack_ticket);
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
  [[nodiscard]] kernels::Arena* peer_arena() override { return arena_.get(); }
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
  void copy(InFlight& end);
  void await(Ticket control_ticket, const Message& message);
  void finish(InFlight& end, Ticket ticket);

  const device::CallStream& compute_;
  std::vector<std::string> notes_;
  bool processes_ = false;  ///< ranks are processes
  device::EventUse use_ = device::EventUse::order;
  std::unique_ptr<PeerArena> arena_;  ///< between processes
  PeerEvents events_;
  std::vector<StridedBytes> imported_;
  std::deque<device::Stream> copies_;  ///< per peer
  std::deque<DoneEvent> done_events_;
  TicketTable<InFlight> ends_;
  std::vector<Ticket> copying_;  ///< posted messages whose copy is this rank's, and not enqueued yet
  i64 pushes_ = 0;               ///< of them
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
  if (processes_) arena_ = std::make_unique<PeerArena>(control(), compute_);
  if (processes_ && size() > 1) notes_ = rate_notes(rank(), measure_peer_rates(control(), mine, same_device));
}

/// Returns an event whose last use both ends have acknowledged, or a new one.
DoneEvent& CopyEngineCommunicator::free_done_event() {
  for (DoneEvent& one : done_events_) {
    if (!one.peer_waits) one.peer_waits = control().test(one.ack_ticket);
    if (one.peer_waits && one.waits) return one;
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
  return processes_ ? events_.open(event.shared) : event.handle;
}

void CopyEngineCommunicator::reserve(i64 messages, i64 /*regions*/) {
  const device::DeviceScope scope(compute_.device());
  control().reserve(control_kinds * messages, control_kinds * messages);
  copying_.reserve(static_cast<std::size_t>(messages));
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
  const Message offer = end.control(Control::offer);
  if (!end.offers()) {
    control().post(&offer, 1, &end.offer_ticket);
    copying_.push_back(ticket);
    if (message.push) ++pushes_;
    return;
  }
  end.offer = {message.regions, message.region_count, end.bytes, name_of(end.mark)};
  control().post(&offer, 1, &end.offer_ticket);
  if (processes_) {
    end.shared.clear();
    for (i64 i = 0; i < message.region_count; ++i)
      end.shared.push_back(message.regions[i].bytes() > 0 ? arena_->name_of(message.regions[i])
                                                          : ArenaRegion{});
    const Message regions = end.control(Control::regions);
    control().post(&regions, 1, &end.regions_ticket);
  }
  const Message done_message = end.control(Control::done);
  control().post(&done_message, 1, &end.done_ticket);
}

/// Between processes: the offered regions, as this process reaches them.
void CopyEngineCommunicator::import_regions(InFlight& end) {
  end.shared.resize(static_cast<std::size_t>(end.offer.region_count));
  const Message regions = end.control(Control::regions);
  control().post(&regions, 1, &end.regions_ticket);
  control().wait(end.regions_ticket);
  imported_.clear();
  for (const ArenaRegion& region : end.shared)
    if (region.shape.bytes() > 0 && region.shape.data != nullptr)
      imported_.push_back(arena_->region_of(end.message.peer, region));
  end.offer.regions = imported_.data();
  end.offer.region_count = static_cast<i64>(imported_.size());
}

/// After the offer: enqueues the copy and sends its event to the offering rank.
void CopyEngineCommunicator::copy(InFlight& end) {
  const Offer& offer = end.offer;
  const auto peer = static_cast<std::size_t>(end.message.peer);
  if (offer.bytes != end.bytes) {
    const CommunicationFault fault =
        size_fault(end.message, rank(), end.message.peer, end.bytes, offer.bytes);
    control().abort(fault);
    throw CommunicationError(fault);
  }
  const device::StreamHandle copies = copies_[peer].get();
  if (processes_) import_regions(end);
  device::wait_for(copies, handle_of(offer.ready));
  device::wait_for(copies, end.mark.get());
  Message offered = end.message;
  offered.regions = offer.regions;
  offered.region_count = offer.region_count;
  if (end.message.push)
    enqueue_copies(end.message, offered, copies);
  else
    enqueue_copies(offered, end.message, copies);
  DoneEvent& copied = free_done_event();
  copied.event.record(copies);
  copied.peer_waits = copied.waits = false;
  end.copied = &copied;
  Message ack = end.control(Control::ack);
  ack.regions = &copied.ack_region;
  control().post(&ack, 1, &copied.ack_ticket);
  end.done.event = name_of(copied.event);
  const Message done_message = end.control(Control::done);
  control().post(&done_message, 1, &end.done_ticket);
  if (end.message.push) --pushes_;
}

void CopyEngineCommunicator::progress() {
  const device::DeviceScope scope(compute_.device());
  control().progress();
  std::erase_if(copying_, [&](Ticket ticket) {
    InFlight& end = ends_[ticket];
    if (!control().test(end.offer_ticket)) return false;
    copy(end);
    return true;
  });
}

/// Waits for a control message. A receiver of a push may be waiting for this rank's copy meanwhile, and this
/// rank for one of a peer that waits likewise: so pushes go on. Receives need not: their senders wait for
/// them at the end of a tick, after the receives of that tick have been waited for.
void CopyEngineCommunicator::await(Ticket control_ticket, const Message& message) {
  if (pushes_ == 0) return control().wait(control_ticket);
  WaitWatch watch(options());
  Backoff backoff;
  while (!control().test(control_ticket)) {
    progress();
    if (const WaitState state = watch.look(); state != WaitState::goes_on) {
      const CommunicationFault fault =
          state == WaitState::interrupted
              ? interrupted_fault(message, rank())
              : late_fault(message, rank(), {message.peer}, options().watchdog_s, "");
      control().abort(fault);
      throw CommunicationError(fault);
    }
    backoff.rest();
  }
}

void CopyEngineCommunicator::wait(Ticket ticket) {
  const device::DeviceScope scope(compute_.device());
  InFlight& end = ends_.of(ticket);
  if (end.state == InFlight::State::open && !end.offers()) {
    const auto pending = [&] { return std::find(copying_.begin(), copying_.end(), ticket); };
    if (pending() != copying_.end()) progress();
    if (const auto at = pending(); at != copying_.end()) {
      copying_.erase(at);
      if (end.message.push) --pushes_;
      await(end.offer_ticket, end.message);
      if (end.message.push) ++pushes_;
      copy(end);
    }
  } else if (end.state == InFlight::State::open) {
    progress();  // the peer may wait for an offer of its own to be taken
    await(end.done_ticket, end.message);
  }
  finish(end, ticket);
}

bool CopyEngineCommunicator::test(Ticket ticket) {
  const device::DeviceScope scope(compute_.device());
  InFlight& end = ends_.of(ticket);
  progress();
  if (end.state == InFlight::State::open) {
    const bool waiting = end.offers() ? !control().test(end.done_ticket)
                                      : std::find(copying_.begin(), copying_.end(), ticket) != copying_.end();
    if (waiting) return false;
  }
  finish(end, ticket);
  return true;
}

/// Both ends know of the copy: orders the compute stream after it.
void CopyEngineCommunicator::finish(InFlight& end, Ticket ticket) {
  if (end.state == InFlight::State::open) {
    // Small control sends complete where they are taken; the payload they announce is ordered by events.
    control().wait(end.offers() ? end.offer_ticket : end.done_ticket);
    if (end.offers() && processes_) control().wait(end.regions_ticket);
    if (!end.offers()) {
      device::wait_for(compute_.get(), end.copied->event.get());
      end.copied->waits = true;
    } else {
      device::wait_for(compute_.get(), handle_of(end.done.event));
      // The end that copies has posted its part before it sent the receipt: this does not block.
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
                                                            const device::CallStream& compute) {
  return std::make_unique<CopyEngineCommunicator>(control, compute);
}

}  // namespace usp::comm
