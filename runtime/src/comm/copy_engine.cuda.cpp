// SPDX-License-Identifier: Apache-2.0
#include "usp/comm/copy_engine.hpp"

#include "box_planes.hpp"
#include "controlled.hpp"
#include "faults.hpp"

#include "usp/base/error.hpp"
#include "usp/device/cuda_error.hpp"
#include "usp/device/device.hpp"

#include <algorithm>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace usp {
namespace {

/// What a sender tells its receiver. Pointers mean the same in all threads of a process.
struct Offer {
  const ByteBox* boxes = nullptr;
  i64 box_count = 0;
  i64 bytes = 0;
  EventHandle ready = nullptr;  ///< the sender's compute stream has filled the boxes
  i64 acknowledged = 0;         ///< receipts of this receiver that the sender has heeded so far
};

/// What the receiver tells back.
struct Receipt {
  EventHandle done = nullptr;  ///< the boxes have been read
};

/// One end of a message in flight.
struct InFlight {
  enum class State : std::uint8_t { free, open, done };
  State state = State::free;
  Message message;
  i64 bytes = 0;
  Offer offer;
  Receipt receipt;
  ByteBox offer_box, receipt_box;
  Ticket offer_ticket = -1;
  Ticket receipt_ticket = -1;
  Event mark;  ///< where the compute stream stood when this end was posted

  explicit InFlight(int device) : mark(device) {
    offer_box.data = reinterpret_cast<std::byte*>(&offer);
    offer_box.run_bytes = sizeof offer;
    receipt_box.data = reinterpret_cast<std::byte*>(&receipt);
    receipt_box.run_bytes = sizeof receipt;
  }
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  /// The control message that carries the offer, or the receipt: the same peer, operation and tick.
  [[nodiscard]] Message control(bool receipts) const {
    Message m = message;
    m.send = message.send != receipts;
    m.tag = 2 * message.tag + (receipts ? 1 : 0);
    m.boxes = receipts ? &receipt_box : &offer_box;
    m.box_count = 1;
    return m;
  }
};

/// Events that say "read" to one peer. The peer waits for one when it likes, so each is recorded again only
/// once the peer has said that it did.
class ReceiptEvents {
 public:
  explicit ReceiptEvents(int device) : device_(device) {}
  void acknowledge(i64 count) {
    for (; acknowledged_ < count; ++acknowledged_) {
      free_.push_back(out_.front());
      out_.pop_front();
    }
  }
  [[nodiscard]] const Event& next() {
    if (free_.empty()) {
      events_.emplace_back(device_);
      free_.push_back(&events_.back());
    }
    out_.push_back(free_.back());
    free_.pop_back();
    return *out_.back();
  }

 private:
  int device_;
  i64 acknowledged_ = 0;
  std::deque<Event> events_;
  std::vector<const Event*> free_;
  std::deque<const Event*> out_;
};

void enable_peer_access(int mine, int other) {
  if (mine == other) return;
  int possible = 0;
  check_cuda(cudaDeviceCanAccessPeer(&possible, mine, other), "cudaDeviceCanAccessPeer");
  if (possible == 0)
    throw EnvironmentError(
        "GPU " + std::to_string(mine) + " cannot reach the memory of GPU " + std::to_string(other) +
        ": copy engines need peer access (see nvidia-smi topo -p2p r); use NCCL or other GPUs");
  const DeviceScope scope(mine);
  const cudaError_t status = cudaDeviceEnablePeerAccess(other, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled)
    cudaGetLastError();
  else
    check_cuda(status, "cudaDeviceEnablePeerAccess");
}

class CopyEngineCommunicator final : public comm::ControlledCommunicator {
 public:
  template <class Control>
  CopyEngineCommunicator(Control&& control, const Stream& compute)
      : ControlledCommunicator(std::forward<Control>(control)), compute_(compute) {
    connect();
  }
  ~CopyEngineCommunicator() override {
    try {
      for (const Stream& stream : copies_) stream.synchronize();
    } catch (...) {
      // The job has failed already, and its story is told.
    }
  }
  CopyEngineCommunicator(const CopyEngineCommunicator&) = delete;
  CopyEngineCommunicator& operator=(const CopyEngineCommunicator&) = delete;

  [[nodiscard]] const char* name() const override { return "copy_engine"; }
  void post(const Message* messages, i64 count, Ticket* tickets) override;
  void wait(Ticket ticket) override;
  [[nodiscard]] bool test(Ticket ticket) override;
  void progress() override;
  void reserve(i64 messages, i64 boxes) override;
  [[nodiscard]] std::unique_ptr<Communicator> group(const std::vector<int>& ranks) override;

 private:
  void connect();
  [[nodiscard]] InFlight& in_flight(Ticket ticket);
  void open(const Message& message, Ticket ticket);
  void fetch(InFlight& end);
  void finish(InFlight& end, Ticket ticket);

  const Stream& compute_;
  std::deque<Stream> copies_;           ///< per peer that sends
  std::deque<ReceiptEvents> receipts_;  ///< per peer that sends
  std::vector<i64> acknowledged_;       ///< per peer that receives
  std::deque<InFlight> ends_;
  std::vector<Ticket> free_;
  std::vector<Ticket> receiving_;  ///< posted receives whose copy has not been enqueued
};

void CopyEngineCommunicator::connect() {
  const std::string_view name = control().name();
  if (name != "threads" && name != "serial")
    throw UsageError("copy engines need ranks that are threads of one process, not '" + std::string(name) +
                     "'; use NCCL between processes");
  std::vector<int> devices(static_cast<std::size_t>(size()));
  const int mine = compute_.device();
  all_gather(&mine, devices.data(), sizeof mine);
  for (const int other : devices) enable_peer_access(mine, other);
  barrier();  // a copy may start once both directions are open
  for (int peer = 0; peer < size(); ++peer) {
    copies_.emplace_back(mine);
    receipts_.emplace_back(mine);
  }
  acknowledged_.resize(static_cast<std::size_t>(size()));
}

InFlight& CopyEngineCommunicator::in_flight(Ticket ticket) {
  expects(ticket >= 0 && static_cast<std::size_t>(ticket) < ends_.size(), "a ticket that was never given");
  InFlight& end = ends_[static_cast<std::size_t>(ticket)];
  expects(end.state != InFlight::State::free, "a ticket that is spent");
  return end;
}

void CopyEngineCommunicator::reserve(i64 messages, i64 /*boxes*/) {
  control().reserve(2 * messages, 2 * messages);
  free_.reserve(static_cast<std::size_t>(messages));
  receiving_.reserve(static_cast<std::size_t>(messages));
  while (static_cast<i64>(ends_.size()) < messages) {
    free_.push_back(static_cast<Ticket>(ends_.size()));
    ends_.emplace_back(compute_.device());
  }
}

void CopyEngineCommunicator::post(const Message* messages, i64 count, Ticket* tickets) {
  for (i64 i = 0; i < count; ++i) {
    check_peer(messages[i]);
    if (free_.empty()) reserve(std::max<i64>(16, 2 * static_cast<i64>(ends_.size())), 0);
    tickets[i] = free_.back();
    free_.pop_back();
    open(messages[i], tickets[i]);
  }
  progress();
}

void CopyEngineCommunicator::open(const Message& message, Ticket ticket) {
  InFlight& end = ends_[static_cast<std::size_t>(ticket)];
  end.message = message;
  end.bytes = message.bytes();
  end.state = end.bytes == 0 ? InFlight::State::done : InFlight::State::open;
  if (end.bytes == 0) return;
  end.mark.record(compute_.get());
  const Message offer = end.control(false), receipt = end.control(true);
  if (!message.send) {
    control().post(&offer, 1, &end.offer_ticket);
    receiving_.push_back(ticket);
    return;
  }
  end.offer = {message.boxes, message.box_count, end.bytes, end.mark.get(),
               acknowledged_[static_cast<std::size_t>(message.peer)]};
  control().post(&offer, 1, &end.offer_ticket);
  control().post(&receipt, 1, &end.receipt_ticket);
}

/// The offer is there: enqueues the copy and tells the sender when it will be done.
void CopyEngineCommunicator::fetch(InFlight& end) {
  const Offer& offer = end.offer;
  const auto peer = static_cast<std::size_t>(end.message.peer);
  if (offer.bytes != end.bytes) {
    const CommunicationFault fault =
        comm::size_fault(end.message, rank(), end.message.peer, end.bytes, offer.bytes);
    control().abort(fault);
    throw CommunicationError(fault);
  }
  ReceiptEvents& receipts = receipts_[peer];
  receipts.acknowledge(offer.acknowledged);
  const StreamHandle copies = copies_[peer].get();
  wait_for(copies, offer.ready);
  wait_for(copies, end.mark.get());
  Message from = end.message;
  from.boxes = offer.boxes;
  from.box_count = offer.box_count;
  comm::for_each_plane(from, end.message, [&](const comm::Plane& p) {
    const auto size = [](i64 n) { return static_cast<std::size_t>(n); };
    check_cuda(p.height == 1 ? cudaMemcpyAsync(p.to, p.from, size(p.width), cudaMemcpyDefault, copies)
                             : cudaMemcpy2DAsync(p.to, size(p.to_pitch), p.from, size(p.from_pitch),
                                                 size(p.width), size(p.height), cudaMemcpyDefault, copies),
               "a copy between GPUs");
  });
  const Event& done = receipts.next();
  done.record(copies);
  end.receipt.done = done.get();
  const Message receipt = end.control(true);
  control().post(&receipt, 1, &end.receipt_ticket);
}

void CopyEngineCommunicator::progress() {
  control().progress();
  std::erase_if(receiving_, [&](Ticket ticket) {
    InFlight& end = ends_[static_cast<std::size_t>(ticket)];
    if (!control().test(end.offer_ticket)) return false;
    fetch(end);
    return true;
  });
}

void CopyEngineCommunicator::wait(Ticket ticket) {
  InFlight& end = in_flight(ticket);
  if (end.state == InFlight::State::open && !end.message.send) {
    const auto at = std::find(receiving_.begin(), receiving_.end(), ticket);
    if (at != receiving_.end()) {
      receiving_.erase(at);
      control().wait(end.offer_ticket);
      fetch(end);
    }
  } else if (end.state == InFlight::State::open) {
    progress();  // the peer may wait for an offer of its own to be taken
    control().wait(end.receipt_ticket);
  }
  finish(end, ticket);
}

bool CopyEngineCommunicator::test(Ticket ticket) {
  InFlight& end = in_flight(ticket);
  progress();
  if (end.state == InFlight::State::open) {
    const bool waiting = end.message.send
                             ? !control().test(end.receipt_ticket)
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
    control().wait(end.message.send ? end.offer_ticket : end.receipt_ticket);
    wait_for(compute_.get(), end.receipt.done);
    if (end.message.send) ++acknowledged_[static_cast<std::size_t>(end.message.peer)];
  }
  traffic().count(end.message.tick, end.message.peer, end.message.send, end.bytes);
  end.state = InFlight::State::free;
  free_.push_back(ticket);
}

std::unique_ptr<Communicator> CopyEngineCommunicator::group(const std::vector<int>& ranks) {
  std::unique_ptr<Communicator> part = control().group(ranks);
  if (part == nullptr) return nullptr;
  return std::make_unique<CopyEngineCommunicator>(std::move(part), compute_);
}

}  // namespace

std::unique_ptr<Communicator> make_copy_engine_communicator(Communicator& control, const Stream& compute) {
  return std::make_unique<CopyEngineCommunicator>(control, compute);
}

}  // namespace usp
