// SPDX-License-Identifier: Apache-2.0
#include "../group/data_plane.hpp"
#include "../group/gpu_identity.cuda.hpp"
#include "../group/ticket_table.hpp"
#include "../regions/plane_copies.hpp"
#include "launch_watch.hpp"
#include "nccl_api.hpp"
#include "staging_pool.hpp"

#include "usp/base/error.hpp"
#include "usp/device/check.cuda.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace usp::comm {
namespace {

/// A call of NCCL that lasts longer waits for a peer.
constexpr auto call_limit = std::chrono::seconds(1);

/// One end of a message in flight, and where its payload lies while it flies.
struct Flight {
  Message message;
  i64 bytes = 0;
  StridedBytes payload;  ///< contiguous: the message's only region, or the staging buffer
  std::optional<device::DeviceBuffer> staging;
};

[[nodiscard]] bool contiguous(const Message& m) {
  if (m.region_count != 1) return false;
  const StackCursor run(m.regions, 1);
  return run.done() || run.width() == m.bytes();
}

class NcclCommunicator final : public DataPlaneCommunicator {
 public:
  template <class Control>
  NcclCommunicator(Control&& control, const device::CallStream* compute, const NcclApi& api)
      : DataPlaneCommunicator(std::forward<Control>(control)),
        api_(api),
        compute_(compute),
        device_(compute == nullptr ? 0 : compute->device()),
        staging_(device_) {
    connect();
    if (compute_ != nullptr && size() > 1)
      watch_.emplace(options(), rank(), device_, [this] { end_kernels(); });
  }
  ~NcclCommunicator() override {
    try {
      if (stream_) stream_->synchronize();
    } catch (...) {
      // The job has already failed and the error has been reported.
    }
    watch_.reset();
    if (const ncclComm_t nccl = nccl_.exchange(nullptr); nccl != nullptr) api_.comm_destroy(nccl);
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  [[nodiscard]] const char* name() const override { return "nccl"; }
  void post(const Message* messages, i64 count, Ticket* tickets) override;
  i64 wait(Ticket ticket) override;
  [[nodiscard]] std::optional<i64> test(Ticket ticket) override;
  [[nodiscard]] bool capturable() const override { return true; }
  void progress() override;
  void reserve(i64 messages, i64 regions) override;
  [[nodiscard]] std::unique_ptr<Communicator> group(const std::vector<int>& ranks) override;
  void abort(const CommunicationFault& fault) override;

 private:
  void connect();
  /// By the watch's thread too: kernels that wait for a peer come back, and so does a call that does. Other
  /// calls are over soon, and must not see the communicator go.
  void end_kernels() {
    std::unique_lock calls(calls_, std::defer_lock);
    (void)calls.try_lock_for(call_limit);
    if (const ncclComm_t nccl = nccl_.exchange(nullptr); nccl != nullptr) api_.comm_abort(nccl);
  }
  void check(ncclResult_t result, const char* call, const Message* message);
  void check_watch();
  [[noreturn]] void fail(const std::string& text, const Message* message);
  Ticket open(const Message& message);
  void stage(Flight& flight, bool capturing);
  void start(const Ticket* tickets, i64 count);

  const NcclApi& api_;
  const device::CallStream* compute_;
  int device_;
  std::recursive_timed_mutex calls_;       ///< of NCCL, with the communicator
  std::atomic<ncclComm_t> nccl_{nullptr};  ///< null: the job has failed
  std::optional<device::Stream> stream_;   ///< of all transfers; made with the first
  std::optional<LaunchWatch> watch_;       ///< goes before NCCL and the stream
  StagingPool staging_;
  TicketTable<Flight> flights_;
  std::vector<std::size_t> launch_of_;  ///< per flight
  std::vector<i64> order_;
};

void NcclCommunicator::connect() {
  if (size() == 1) return;
  ncclUniqueId id{};
  if (rank() == 0) check(api_.get_unique_id(&id), "ncclGetUniqueId", nullptr);
  broadcast(&id, sizeof id, 0);
  std::optional<device::DeviceScope> scope;
  if (compute_ != nullptr) {
    scope.emplace(device_);
    require_whole_gpus(control(), identity_of(device_));
  }
  ncclComm_t nccl = nullptr;
  check(api_.comm_init_rank(&nccl, size(), id, rank()), "ncclCommInitRank", nullptr);
  nccl_ = nccl;
}

/// Ends the job: NCCL's communicator first, so that kernels that wait for a peer come back.
void NcclCommunicator::fail(const std::string& text, const Message* message) {
  CommunicationFault fault;
  fault.operation = message == nullptr ? "nccl" : message->operation;
  fault.tick = message == nullptr ? -1 : message->tick;
  fault.rank = rank();
  if (message != nullptr) fault.missing = {message->peer};
  fault.message = text;
  abort(fault);
  throw CommunicationError(fault);
}

void NcclCommunicator::check_watch() {
  if (!watch_ || !watch_->failed()) return;
  abort(watch_->fault());
  throw CommunicationError(watch_->fault());
}

void NcclCommunicator::check(ncclResult_t result, const char* call, const Message* message) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  check_watch();
  std::string text = fmt::format("rank {}: {} failed: {}", rank(), call, api_.get_error_string(result));
  if (message != nullptr)
    text += fmt::format(" in '{}' of tick {} with rank {}", message->operation, message->tick, message->peer);
  fail(text + "; set NCCL_DEBUG=WARN for details", message);
}

void NcclCommunicator::abort(const CommunicationFault& fault) {
  end_kernels();
  DataPlaneCommunicator::abort(fault);
}

void NcclCommunicator::reserve(i64 messages, i64 /*regions*/) {
  flights_.reserve(messages);
  launch_of_.resize(static_cast<std::size_t>(flights_.size()));
}

Ticket NcclCommunicator::open(const Message& message) {
  check_peer(message);
  const Ticket ticket = flights_.open([this](i64 count) { reserve(count, 0); });
  Flight& flight = flights_[ticket];
  flight.message = message;
  flight.bytes = message.bytes();
  return ticket;
}

/// Gives a payload that is not contiguous a place where it is; a send's is packed.
void NcclCommunicator::stage(Flight& flight, bool capturing) {
  if (contiguous(flight.message)) {
    flight.payload = flight.message.regions[0];
    return;
  }
  flight.staging = staging_.take(flight.bytes, capturing);
  flight.payload = StridedBytes{};
  flight.payload.data = flight.staging->data();
  flight.payload.run_bytes = flight.bytes;
  if (!flight.message.send) return;
  Message packed = flight.message;
  packed.regions = &flight.payload;
  packed.region_count = 1;
  enqueue_copies(flight.message, packed, stream_->get());
}

void NcclCommunicator::start(const Ticket* tickets, i64 count) {
  const auto at = [&](i64 i) -> Flight& { return flights_[tickets[i]]; };
  // NCCL matches by order: by tag, so that both ends need not list the messages of a call alike.
  order_.resize(static_cast<std::size_t>(count));
  std::iota(order_.begin(), order_.end(), i64{0});
  std::stable_sort(order_.begin(), order_.end(),
                   [&](i64 a, i64 b) { return at(a).message.tag < at(b).message.tag; });
  const std::lock_guard calls(calls_);
  check_watch();
  const ncclComm_t nccl = nccl_;
  check(api_.group_start(), "ncclGroupStart", nullptr);
  ncclResult_t first_fault = ncclSuccess;
  const Message* culprit = nullptr;
  for (const i64 i : order_) {
    Flight& f = at(i);
    if (f.bytes == 0) continue;
    const auto bytes = static_cast<std::size_t>(f.bytes);
    const ncclResult_t result =
        f.message.send ? api_.send(f.payload.data, bytes, ncclInt8, f.message.peer, nccl, stream_->get())
                       : api_.recv(f.payload.data, bytes, ncclInt8, f.message.peer, nccl, stream_->get());
    if (result == ncclSuccess || first_fault != ncclSuccess) continue;
    first_fault = result;
    culprit = &f.message;
  }
  const ncclResult_t end = api_.group_end();  // also after a fault: the group is this thread's
  check(first_fault, "ncclSend or ncclRecv", culprit);
  check(end, "ncclGroupEnd", nullptr);
  for (i64 i = 0; i < count; ++i) {
    Flight& f = at(i);
    if (f.message.send || !f.staging) continue;
    Message packed = f.message;
    packed.regions = &f.payload;
    packed.region_count = 1;
    enqueue_copies(packed, f.message, stream_->get());
  }
}

void NcclCommunicator::post(const Message* messages, i64 count, Ticket* tickets) {
  progress();
  bool any = false;
  for (i64 i = 0; i < count; ++i) {
    tickets[i] = open(messages[i]);
    any = any || flights_[tickets[i]].bytes > 0;
  }
  if (!any) return;
  const device::DeviceScope scope(device_);
  if (!stream_) stream_.emplace(device_);
  const bool capturing = device::is_capturing(compute_->get());
  const std::size_t at = watch_->take(capturing);
  Launch& launch = (*watch_)[at];
  const Message* first = nullptr;
  launch.ready.record(compute_->get());
  device::wait_for(stream_->get(), launch.ready.get());
  for (i64 i = 0; i < count; ++i) {
    Flight& flight = flights_[tickets[i]];
    if (flight.bytes == 0) continue;
    launch_of_[static_cast<std::size_t>(tickets[i])] = at;
    ++launch.open_messages;
    if (first == nullptr) first = &flight.message;
    stage(flight, capturing);
  }
  start(tickets, count);
  launch.done.record(stream_->get());
  if (!capturing) watch_->started(at, *first);
}

i64 NcclCommunicator::wait(Ticket ticket) {
  Flight& flight = flights_.of(ticket);
  progress();
  if (flight.bytes > 0) {
    const device::DeviceScope scope(device_);
    Launch& launch = (*watch_)[launch_of_[static_cast<std::size_t>(ticket)]];
    device::wait_for(compute_->get(), launch.done.get());
    --launch.open_messages;
  }
  const i64 moved = flight.bytes;
  if (flight.staging) staging_.give(std::move(*std::exchange(flight.staging, std::nullopt)));
  flights_.close(ticket);
  return moved;
}

std::optional<i64> NcclCommunicator::test(Ticket ticket) {
  const Flight& flight = flights_.of(ticket);
  progress();
  if (flight.bytes > 0 && !(*watch_)[launch_of_[static_cast<std::size_t>(ticket)]].done.reached())
    return std::nullopt;
  return wait(ticket);
}

void NcclCommunicator::progress() {
  control().progress();
  check_watch();
  const std::lock_guard calls(calls_);
  const ncclComm_t nccl = nccl_;
  if (nccl == nullptr) return;
  ncclResult_t state = ncclSuccess;
  check(api_.comm_get_async_error(nccl, &state), "ncclCommGetAsyncError", nullptr);
  check(state, "an exchange of NCCL", nullptr);
}

std::unique_ptr<Communicator> NcclCommunicator::group(const std::vector<int>& ranks) {
  std::unique_ptr<Communicator> part = control().group(ranks);
  if (part == nullptr) return nullptr;
  return std::make_unique<NcclCommunicator>(std::move(part), compute_, api_);
}

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(Communicator& control, const device::CallStream* compute,
                                                     const NcclApi& api) {
  return std::make_unique<NcclCommunicator>(control, compute, api);
}

}  // namespace usp::comm
