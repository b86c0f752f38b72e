// SPDX-License-Identifier: Apache-2.0
#include "copy_channels.hpp"

#include "../failure/backoff.hpp"
#include "../failure/faults.hpp"
#include "../failure/wait_watch.hpp"
#include "../regions/plane_copies.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace usp::comm {
namespace {

/// Of one transfer that nothing hides. Between two H200, threads are faster than an engine up to 16 MiB where
/// the receiver copies (4 MiB in 30 us instead of 38), and up to 32 MiB where the sender does; several
/// transfers take one kernel.
constexpr i64 max_bytes_pulled_by_threads = i64{16} << 20, max_bytes_pushed_by_threads = i64{32} << 20;

/// Between flags, in bytes: a sector of L2, which a kernel's threads poll.
constexpr i64 gate_spacing = 32;

}  // namespace

CopyChannels::CopyChannels(CopyRank& rank, const std::vector<ChannelEnd>& ends, Bundles bundles)
    : rank_(rank),
      ends_(ends),
      bundles_(std::move(bundles)),
      starts_(ends.size()),
      moved_(ends.size(), 0),
      mark_(rank.compute.device()) {
  std::size_t most_regions = 0;
  bool gated = false;
  copied_.resize(bundles_.bundles.size());
  pushed_.resize(bundles_.bundles.size());
  completed_.resize(bundles_.bundles.size());
  for (std::size_t i = 0; i < copied_.size(); ++i) {
    const Bundle& bundle = bundles_.bundles[i];
    gated = gated || bundle.first.gated;
    if (bundle.offers ? bundle.first.gated : !copies_by_threads(bundle))
      copied_[i].emplace(rank.compute.device());
    if (!bundle.offers && bundle.link != nullptr && !bundle.link->done)
      bundle.link->done.emplace(rank.compute.device());
  }
  if (gated && rank.gates) {
    const auto bytes = static_cast<i64>(copied_.size()) * gate_spacing;
    gates_ = device::DeviceBuffer(rank.compute.device(), bytes);
    const device::DeviceScope scope(rank.compute.device());
    device::set_device_bytes(gates_.data(), 0, bytes, rank.compute.get());
    for (GatedTick& gated_tick : gated_ticks_) gated_tick.mark.emplace(rank.compute.device());
  }
  for (ChannelEnd& end : ends_) end.regions = nullptr;
  for (const auto& regions : bundles_.offered) most_regions = std::max(most_regions, regions.size());
  reached_.reserve(most_regions);
  started_.reserve(bundles_.bundles.size());
  copying_.reserve(bundles_.bundles.size());
  exposed_.reserve(bundles_.bundles.size());
}

void CopyChannels::begin() {
  rank_.control.progress();
  rank_.watch.check();
  const bool captures = device::is_capturing(rank_.compute.get());
  if (rank_.in_pass && !captures) end_job();
  rank_.in_pass = !captures && !bundles_.bundles.empty();
  by_events_ = rank_.threads && !captures;
  gated_ = gates_.data() != nullptr && !captures;
  ++epoch_;
  std::fill(pushed_.begin(), pushed_.end(), false);
  std::fill(completed_.begin(), completed_.end(), false);
  for (GatedTick& gated_tick : gated_ticks_) gated_tick.tick = -1;
  awaited_ = 0;
  operations_.clear();
  for (Bundle& bundle : bundles_.bundles) bundle.waited = 0;
  copying_.clear();
  exposed_.clear();
}

/// An exception has left a pass: its flags would end the waits of the next one.
void CopyChannels::end_job() {
  CommunicationFault fault;
  fault.operation = "copy_engine";
  fault.rank = rank_.control.rank();
  fault.message = fmt::format(
      "an error ended a pass of rank {} between its transfers, so that the ranks cannot go on together; the "
      "error before this one is the cause",
      fault.rank);
  rank_.watch.fail(fault);
  rank_.watch.check();
}

void CopyChannels::start(const ChannelStart* starts, i64 count) {
  rank_.watch.check();
  const device::DeviceScope scope(rank_.compute.device());
  started_.clear();
  last_gated_ = nullptr;
  for (i64 i = 0; i < count; ++i) {
    const auto channel = static_cast<std::size_t>(starts[i].channel);
    starts_[channel] = starts[i];
    const std::size_t bundle = bundles_.of_channel[channel];
    if (std::find(started_.begin(), started_.end(), bundle) == started_.end()) started_.push_back(bundle);
  }
  for (const std::size_t bundle : started_)
    if (bundles_.bundles[bundle].offers) offer(bundles_.bundles[bundle]);
  operations_.enqueue(rank_.compute.get());
  mark_compute();
  for (const std::size_t at : started_) {
    Bundle& bundle = bundles_.bundles[at];
    if (bundle.offers) continue;
    if (copies_by_threads(bundle))
      exposed_.push_back(&bundle);
    else
      copy(bundle);
  }
}

/// Before the first wait of a tick: what this rank copies comes before what it waits for.
void CopyChannels::copy_exposed() {
  for (Bundle* const bundle : exposed_) copy(*bundle);
  exposed_.clear();
}

/// An offer's event is a mark too.
void CopyChannels::mark_compute() {
  started_at_ = nullptr;
  bool engines = false;
  for (const std::size_t at : started_) {
    const Bundle& bundle = bundles_.bundles[at];
    if (const std::int32_t tick = bundle.first.tick; gated_ && bundle.first.gated) {
      GatedTick& gated_tick = gated_ticks_[static_cast<std::size_t>(tick & 1)];
      if (gated_tick.tick != tick) gated_tick.mark->record(rank_.compute.get());
      gated_tick.tick = tick;
    }
    if (!bundle.offers)
      engines = engines || !copies_by_threads(bundle);
    else if (gated_ && bundle.first.gated && !bundle.first.send)
      engines = true;
    else if (by_events_ && !completed_[at])
      started_at_ = bundle.link->ready.get();
  }
  if (!engines || started_at_ != nullptr) return;
  mark_.record(rank_.compute.get());
  started_at_ = mark_.get();
}

/// Where the compute stream has to have come before a copy begins: to its start, or of one that may be early
/// to the start of the tick before, since which there is room for it.
device::EventHandle CopyChannels::begin_of(const Bundle& bundle) const {
  const std::int32_t before = bundle.first.tick - 1;
  const GatedTick& gated_tick = gated_ticks_[static_cast<std::size_t>(before & 1)];
  const bool early = gated_ && bundle.first.early && gated_tick.tick == before;
  return early ? gated_tick.mark->get() : started_at_;
}

bool CopyChannels::copies_by_threads(const Bundle& bundle) const {
  const i64 most = bundle.first.push ? max_bytes_pushed_by_threads : max_bytes_pulled_by_threads;
  return bundle.exposed && bundle.bytes <= most * static_cast<i64>(bundle.channels.size());
}

void CopyChannels::offer(Bundle& bundle) {
  const bool by_kernel = completed_[number_of(bundle)];
  if (!by_events_) {
    if (!by_kernel) operations_.write(ready_flag(bundle), 1);
    return;
  }
  bundle.link->by_kernel = by_kernel;
  if (!by_kernel) bundle.link->ready.record(rank_.compute.get());
  bundle.link->ready_count.store(++bundle.link->offers, std::memory_order_release);
}

void CopyChannels::copy(Bundle& bundle) {
  const int peer = bundle.first.peer;
  const bool by_threads = copies_by_threads(bundle);
  const device::StreamHandle copies =
      by_threads ? rank_.compute.get() : rank_.copies[static_cast<std::size_t>(peer)].get();
  if (!by_threads) device::wait_for(copies, begin_of(bundle));
  EventLink* const link = by_events_ ? bundle.link : nullptr;
  if (link != nullptr) {
    await_host(link->ready_count, ++link->copies, bundle);
    if (!link->by_kernel) device::wait_for(copies, link->ready.get());
  }
  if (link == nullptr || link->by_kernel) {
    rank_.watch.await(operations_, by_threads ? 0 : 1 + peer,
                      rank_.flags.ready(rank_.control.rank(), peer, bundle.slot), bundle.first.message());
    operations_.enqueue(copies);
  }
  const std::size_t at = number_of(bundle);
  const bool gated = gated_ && bundle.first.gated && !by_threads;
  if (gated && last_gated_ != nullptr) device::wait_for(copies, last_gated_);
  payload_.clear();
  for (const std::int32_t channel : bundle.channels) append_payload(channel);
  device::enqueue_plane_copies(payload_.data(), payload_.size(),
                               by_threads ? device::CopyBy::threads : device::CopyBy::engine, copies);
  if (link != nullptr) {
    link->done->record(copies);
    link->done_count.store(link->copies, std::memory_order_release);
  } else {
    operations_.write(rank_.flags.done(peer, rank_.control.rank(), bundle.slot), 1);
    operations_.enqueue(copies);
  }
  if (by_threads) return;
  if (gated && !bundle.first.send) {
    operations_.write(gate_flag(at), epoch_);
    operations_.enqueue(copies);
  }
  if (link == nullptr || gated) copied_[at]->record(copies);
  if (gated) last_gated_ = copied_[at]->get();
  copying_.push_back(at);
}

Flag* CopyChannels::gate_flag(std::size_t bundle) const {
  return reinterpret_cast<Flag*>(gates_.data() + static_cast<i64>(bundle) * gate_spacing);
}

/// By which an end that offers tells the other one.
Flag* CopyChannels::ready_flag(const Bundle& bundle) const {
  return rank_.flags.ready(bundle.first.peer, rank_.control.rank(), bundle.slot);
}

/// The copy stream of a peer sets the gate behind the peer's push: after all that this rank copies, and after
/// what it has set.
void CopyChannels::await_push(Bundle& bundle) {
  const int peer = bundle.first.peer;
  const std::size_t at = number_of(bundle);
  const device::StreamHandle copies = rank_.copies[static_cast<std::size_t>(peer)].get();
  device::wait_for(copies, started_at_);
  if (by_events_) {
    await_host(bundle.link->done_count, bundle.link->offers, bundle);
    device::wait_for(copies, bundle.link->done->get());
  } else {
    rank_.watch.await(operations_, 1 + peer, rank_.flags.done(rank_.control.rank(), peer, bundle.slot),
                      bundle.first.message());
  }
  operations_.write(gate_flag(at), epoch_);
  operations_.enqueue(copies);
  copied_[at]->record(copies);
  pushed_[at] = true;
}

std::optional<ReceiveGate> CopyChannels::gate(std::int32_t channel) {
  Bundle& bundle = bundle_of(channel);
  const std::size_t at = number_of(bundle);
  if (!gated_ || !bundle.first.gated || bundle.first.send || (!bundle.offers && copies_by_threads(bundle)))
    return {};
  const device::DeviceScope scope(rank_.compute.device());
  if (bundle.offers && !pushed_[at]) await_push(bundle);
  return ReceiveGate{{gate_flag(at), epoch_}, rank_.watch.of_kernels()};
}

/// What the peer's copy stream awaits, page-locked host memory: one kernel sets one flag.
std::optional<kernels::Completion> CopyChannels::completion(std::int32_t channel) {
  Bundle& bundle = bundle_of(channel);
  if (!gated_ || !bundle.first.early || !bundle.offers || bundle.channels.size() != 1) return {};
  completed_[number_of(bundle)] = true;
  return kernels::Completion{ready_flag(bundle), 1};
}

/// The event that a bundle's copies by engines end with.
device::EventHandle CopyChannels::copied(std::size_t bundle) const {
  const bool own = !by_events_ || (gated_ && bundles_.bundles[bundle].first.gated);
  return own ? copied_[bundle]->get() : bundles_.bundles[bundle].link->done->get();
}

/// The compute stream goes on after the copies that are due by a tick.
void CopyChannels::join_copies(std::int32_t tick) {
  std::erase_if(copying_, [&](std::size_t bundle) {
    if (bundles_.bundles[bundle].first.due > tick) return false;
    device::wait_for(rank_.compute.get(), copied(bundle));
    return true;
  });
}

void CopyChannels::append_payload(std::int32_t channel) {
  const auto at = static_cast<std::size_t>(channel);
  const ChannelEnd& end = ends_[at];
  reached_.clear();
  for (const ArenaRegion& region : bundles_.offered[at])
    if (region.shape.bytes() > 0) reached_.push_back(rank_.arena->region_of(end.peer, region));
  Message mine = end.message(), theirs = mine;
  mine.regions = starts_[at].regions, mine.region_count = starts_[at].region_count;
  theirs.regions = reached_.data(), theirs.region_count = static_cast<i64>(reached_.size());
  moved_[at] = end.send ? append_copies(mine, theirs, payload_) : append_copies(theirs, mine, payload_);
}

/// Until a peer's thread has recorded an event as often as expected.
void CopyChannels::await_host(const std::atomic<std::uint64_t>& count, std::uint64_t expected,
                              const Bundle& bundle) {
  if (count.load(std::memory_order_acquire) >= expected) return;
  WaitWatch watch(rank_.control.options());
  Backoff backoff;
  while (count.load(std::memory_order_acquire) < expected) {
    rank_.control.progress();
    rank_.watch.check();
    if (const WaitState state = watch.look(); state != WaitState::goes_on) {
      const Message message = bundle.first.message();
      const int me = rank_.control.rank();
      const CommunicationFault fault =
          state == WaitState::interrupted
              ? interrupted_fault(message, me)
              : late_fault(message, me, {message.peer}, rank_.control.options().watchdog_s, "");
      rank_.control.abort(fault);
      throw CommunicationError(fault);
    }
    backoff.rest();
  }
}

i64 CopyChannels::wait(std::int32_t channel) {
  Bundle& bundle = bundle_of(channel);
  const auto at = static_cast<std::size_t>(channel);
  const std::size_t at_bundle = number_of(bundle);
  if (bundle.waited++ == 0) {
    const device::DeviceScope scope(rank_.compute.device());
    const device::StreamHandle compute = rank_.compute.get();
    copy_exposed();
    if (!bundle.offers) {
      if (std::erase(copying_, at_bundle) > 0) device::wait_for(compute, copied(at_bundle));
    } else if (pushed_[at_bundle]) {
      device::wait_for(compute, copied_[at_bundle]->get());
    } else if (by_events_) {
      await_host(bundle.link->done_count, bundle.link->offers, bundle);
      device::wait_for(compute, bundle.link->done->get());
    } else {
      join_copies(bundle.first.due);
      rank_.watch.await(operations_, 0,
                        rank_.flags.done(rank_.control.rank(), bundle.first.peer, bundle.slot),
                        bundle.first.message());
      operations_.enqueue(compute);
    }
    if (++awaited_ == bundles_.bundles.size()) rank_.in_pass = false;
  }
  return bundle.offers ? ends_[at].bytes : moved_[at];
}

}  // namespace usp::comm
