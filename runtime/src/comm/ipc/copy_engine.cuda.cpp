// SPDX-License-Identifier: Apache-2.0
#include "usp/comm/copy_engine.hpp"

#include "../failure/backoff.hpp"
#include "../failure/deadline.hpp"
#include "../group/gpu_identity.cuda.hpp"
#include "copy_channels.hpp"
#include "peer_rates.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace usp::comm {
namespace {

/// How long a rank of a failed job keeps its memory for peers.
constexpr double leave_s = 2;

/// Of a device, which processes may number differently.
using Uuid = decltype(GpuIdentity::uuid);

/// This process's number of a peer's device, out of all that it sees.
[[nodiscard]] int number_of(const Uuid& device, int peer, const std::vector<Uuid>& visible) {
  for (std::size_t i = 0; i < visible.size(); ++i)
    if (visible[i] == device) return static_cast<int>(i);
  throw EnvironmentError(
      fmt::format("the GPU of rank {} is not visible here, so copies to it would go through the host; let "
                  "every process see all GPUs (CUDA_VISIBLE_DEVICES)",
                  peer));
}

[[nodiscard]] PeerArena::Ranks kind_of(const Communicator& control) {
  const std::string_view kind = control.name();
  if (kind == "threads" || kind == "serial") return PeerArena::Ranks::threads;
  if (kind == "mpi" || kind == "sockets") return PeerArena::Ranks::processes;
  throw UsageError(fmt::format(
      "copy engines need ranks that are threads of one process or processes of one host, not '{}'", kind));
}

class CopyEngineDataPlane final : public DataPlane {
 public:
  CopyEngineDataPlane(Communicator& control, const device::CallStream& compute,
                      const CopyEngineOptions& options)
      : kind_(kind_of(control)),
        rank_{control,
              compute,
              kind_ == PeerArena::Ranks::threads,
              false,
              false,
              nullptr,
              SharedFlags(control),
              StallWatch(control, rank_.flags, compute.device(), 1 + control.size()),
              {}} {
    connect_devices();
    rank_.gates = shared_rank_ < 0 || options.gates_on_shared_gpus;
    if (kind_ == PeerArena::Ranks::threads) share_boards();
  }
  ~CopyEngineDataPlane() override;
  CopyEngineDataPlane(const CopyEngineDataPlane&) = delete;
  CopyEngineDataPlane& operator=(const CopyEngineDataPlane&) = delete;

  [[nodiscard]] const char* name() const override { return "copy_engine"; }
  [[nodiscard]] Communicator& control() override { return rank_.control; }
  [[nodiscard]] std::unique_ptr<Channels> connect(const std::vector<ChannelEnd>& ends) override;
  [[nodiscard]] kernels::Arena* peer_arena(kernels::Memory& memory) override;
  [[nodiscard]] i64 held_bytes() const override {
    const bool own = arena_ != nullptr && kind_ == PeerArena::Ranks::processes;
    return own ? arena_->bytes() : 0;
  }
  [[nodiscard]] schedule::PeerReach reach() const override { return schedule::PeerReach::workspace; }
  [[nodiscard]] std::string capture_obstacle() const override;
  void check() override {
    rank_.control.progress();
    rank_.watch.check();
  }
  [[nodiscard]] std::vector<std::string> notes() const override { return notes_; }

 private:
  void connect_devices();
  void share_boards();
  void leave();

  const PeerArena::Ranks kind_;
  CopyRank rank_;
  int shared_rank_ = -1;  ///< the first rank whose GPU is also a later one's
  std::unique_ptr<PeerArena> arena_;
  std::vector<std::shared_ptr<EventBoard>> boards_;  ///< per rank, of threads
  std::vector<std::string> notes_;
};

/// Streams end before what they read: a job that has failed lets them go on.
CopyEngineDataPlane::~CopyEngineDataPlane() {
  try {
    if (std::uncaught_exceptions() > 0) {
      CommunicationFault fault;
      fault.message = fmt::format("rank {} left the job", rank_.control.rank());
      rank_.watch.fail(fault);
    } else {
      rank_.control.progress();
    }
  } catch (const CommunicationError& error) {
    rank_.watch.fail(error.fault());
  } catch (...) {
    // The streams end by the watch.
  }
  try {
    for (const device::Stream& stream : rank_.copies) stream.synchronize();
    rank_.compute.wait_for_calls();
  } catch (...) {
    // The job has already failed and the error has been reported.
  }
  leave();
}

/// Streams of a failed job may still read this rank's memory; those of peers that do not leave are on their
/// own.
void CopyEngineDataPlane::leave() {
  if (!rank_.flags.has_room()) return;
  rank_.flags.left(rank_.control.rank()).store(1, std::memory_order_release);
  if (!rank_.watch.failed()) return;
  const Deadline deadline(leave_s);
  Backoff backoff;
  for (int peer = 0; peer < rank_.control.size(); ++peer)
    while (rank_.flags.left(peer).load(std::memory_order_acquire) == 0 && !deadline.over()) backoff.rest();
}

void CopyEngineDataPlane::connect_devices() {
  Communicator& control = rank_.control;
  const int mine = rank_.compute.device();
  const device::DeviceScope scope(mine);
  require_whole_gpus(control, identity_of(mine));
  std::vector<Uuid> visible;
  for (int i = 0; i < device::device_count(); ++i) visible.push_back(identity_of(i).uuid);
  const Uuid me = visible.at(static_cast<std::size_t>(mine));
  std::vector<Uuid> devices(static_cast<std::size_t>(control.size()));
  control.all_gather(&me, devices.data(), sizeof me);
  std::vector<bool> same_device;  // per rank
  std::vector<int> numbers;
  for (int peer = 0; peer < control.size(); ++peer) {
    const int number = number_of(devices[static_cast<std::size_t>(peer)], peer, visible);
    device::enable_peer_access(mine, number);
    same_device.push_back(number == mine);
    if (const auto known = std::find(numbers.begin(), numbers.end(), number);
        known != numbers.end() && shared_rank_ < 0)
      shared_rank_ = static_cast<int>(known - numbers.begin());
    numbers.push_back(number);
    rank_.copies.emplace_back(mine);
  }
  control.barrier();  // memory may be opened and copied once both directions are open
  if (kind_ == PeerArena::Ranks::processes && control.size() > 1)
    notes_ = rate_notes(control.rank(), measure_peer_rates(control, mine, same_device));
}

/// Every rank owns all boards, so that an event outlives both ends.
void CopyEngineDataPlane::share_boards() {
  Communicator& control = rank_.control;
  auto mine = std::make_shared<EventBoard>(control.size());
  std::shared_ptr<EventBoard>* const lent = &mine;
  std::vector<std::shared_ptr<EventBoard>*> all(static_cast<std::size_t>(control.size()));
  control.all_gather(&lent, all.data(), sizeof lent);
  for (std::shared_ptr<EventBoard>* const board : all) boards_.push_back(*board);
  control.barrier();  // all have taken theirs
}

kernels::Arena* CopyEngineDataPlane::peer_arena(kernels::Memory& memory) {
  if (arena_ == nullptr) {
    const bool threads = kind_ == PeerArena::Ranks::threads;
    arena_ = std::make_unique<PeerArena>(rank_.control, rank_.compute, kind_,
                                         threads ? memory.make_arena() : nullptr);
    rank_.arena = arena_.get();
  }
  return arena_.get();
}

std::unique_ptr<Channels> CopyEngineDataPlane::connect(const std::vector<ChannelEnd>& ends) {
  for (const ChannelEnd& end : ends)
    if (end.peer == rank_.control.rank() || end.peer < 0 || end.peer >= rank_.control.size())
      throw UsageError(fmt::format("rank {} of {} cannot exchange a message with rank {}",
                                   rank_.control.rank(), rank_.control.size(), end.peer));
  expects(ends.empty() || arena_ != nullptr, "channels of copy engines need the arena of peers");
  Bundles bundles = bundles_of(ends);
  EventBoard* const board =
      boards_.empty() ? nullptr : boards_[static_cast<std::size_t>(rank_.control.rank())].get();
  for (Bundle& bundle : bundles.bundles) {
    if (board == nullptr) break;
    std::deque<EventLink>& links = board->links[static_cast<std::size_t>(bundle.first.peer)];
    while (links.size() <= bundle.slot) links.emplace_back(rank_.compute.device());
    bundle.link = &links[bundle.slot];
  }
  {
    const device::DeviceScope scope(rank_.compute.device());
    const auto lock = rank_.watch.hold();
    rank_.flags.reserve(rank_.control, bundles.max_slots());
  }
  if (arena_ != nullptr) exchange_offers(rank_.control, *arena_, ends, board, bundles);
  return std::make_unique<CopyChannels>(rank_, ends, std::move(bundles));
}

std::string CopyEngineDataPlane::capture_obstacle() const {
  if (!rank_.threads || shared_rank_ < 0) return "";
  return fmt::format(
      "ranks are threads that share a GPU (rank {} and another), where streams cannot wait for one "
      "another without their hosts",
      shared_rank_);
}

}  // namespace

std::unique_ptr<DataPlane> make_copy_engine_data_plane(Communicator& control,
                                                       const device::CallStream& compute,
                                                       const CopyEngineOptions& options) {
  return std::make_unique<CopyEngineDataPlane>(control, compute, options);
}

}  // namespace usp::comm
