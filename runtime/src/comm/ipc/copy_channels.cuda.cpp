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

CopyChannels::CopyChannels(CopyRank& rank, const std::vector<ChannelEnd>& ends, Bundles bundles)
    : rank_(rank),
      ends_(ends),
      bundles_(std::move(bundles)),
      starts_(ends.size()),
      moved_(ends.size(), 0),
      mark_(rank.compute.device()) {
  std::size_t most_regions = 0;
  copied_.resize(bundles_.bundles.size());
  for (std::size_t i = 0; i < copied_.size(); ++i)
    if (const Bundle& bundle = bundles_.bundles[i]; !bundle.offers) {
      copied_[i].emplace(rank.compute.device());
      if (bundle.link != nullptr && !bundle.link->done) bundle.link->done.emplace(rank.compute.device());
    }
  for (ChannelEnd& end : ends_) end.regions = nullptr;
  for (const auto& regions : bundles_.offered) most_regions = std::max(most_regions, regions.size());
  reached_.reserve(most_regions);
  started_.reserve(bundles_.bundles.size());
  copying_.reserve(bundles_.bundles.size());
}

void CopyChannels::begin() {
  rank_.control.progress();
  rank_.watch.check();
  const bool captures = device::is_capturing(rank_.compute.get());
  if (rank_.in_pass && !captures) end_job();
  rank_.in_pass = !captures && !bundles_.bundles.empty();
  by_events_ = rank_.threads && !captures;
  awaited_ = 0;
  operations_.clear();
  for (Bundle& bundle : bundles_.bundles) bundle.waited = 0;
  copying_.clear();
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
  for (i64 i = 0; i < count; ++i) {
    const auto channel = static_cast<std::size_t>(starts[i].channel);
    starts_[channel] = starts[i];
    const std::size_t bundle = bundles_.of_channel[channel];
    if (std::find(started_.begin(), started_.end(), bundle) == started_.end()) started_.push_back(bundle);
  }
  for (const std::size_t bundle : started_)
    if (bundles_.bundles[bundle].offers) offer(bundles_.bundles[bundle]);
  operations_.enqueue(rank_.compute.get());
  mark_.record(rank_.compute.get());
  for (const std::size_t bundle : started_)
    if (!bundles_.bundles[bundle].offers) copy(bundles_.bundles[bundle]);
}

void CopyChannels::offer(Bundle& bundle) {
  if (!by_events_)
    return operations_.write(rank_.flags.ready(bundle.first.peer, rank_.control.rank(), bundle.slot), 1);
  bundle.link->ready.record(rank_.compute.get());
  bundle.link->ready_count.store(++bundle.link->offers, std::memory_order_release);
}

void CopyChannels::copy(Bundle& bundle) {
  const int peer = bundle.first.peer;
  const device::StreamHandle copies = rank_.copies[static_cast<std::size_t>(peer)].get();
  device::wait_for(copies, mark_.get());
  EventLink* const link = by_events_ ? bundle.link : nullptr;
  if (link != nullptr) {
    await_host(link->ready_count, ++link->copies, bundle);
    device::wait_for(copies, link->ready.get());
  } else {
    rank_.watch.await(operations_, 1 + peer, rank_.flags.ready(rank_.control.rank(), peer, bundle.slot),
                      bundle.first.message());
    operations_.enqueue(copies);
  }
  for (const std::int32_t channel : bundle.channels) enqueue_payload(channel, copies);
  if (link != nullptr) {
    link->done->record(copies);
    link->done_count.store(link->copies, std::memory_order_release);
  } else {
    operations_.write(rank_.flags.done(peer, rank_.control.rank(), bundle.slot), 1);
    operations_.enqueue(copies);
  }
  const auto at = static_cast<std::size_t>(&bundle - bundles_.bundles.data());
  copied_[at]->record(copies);
  copying_.push_back(at);
}

/// The compute stream goes on after the copies that are due by a tick.
void CopyChannels::join_copies(std::int32_t tick) {
  std::erase_if(copying_, [&](std::size_t bundle) {
    if (bundles_.bundles[bundle].first.due > tick) return false;
    device::wait_for(rank_.compute.get(), copied_[bundle]->get());
    return true;
  });
}

void CopyChannels::enqueue_payload(std::int32_t channel, device::StreamHandle copies) {
  const auto at = static_cast<std::size_t>(channel);
  const ChannelEnd& end = ends_[at];
  reached_.clear();
  for (const ArenaRegion& region : bundles_.offered[at])
    if (region.shape.bytes() > 0) reached_.push_back(rank_.arena->region_of(end.peer, region));
  Message mine = end.message(), theirs = mine;
  mine.regions = starts_[at].regions, mine.region_count = starts_[at].region_count;
  theirs.regions = reached_.data(), theirs.region_count = static_cast<i64>(reached_.size());
  moved_[at] = end.send ? enqueue_copies(mine, theirs, copies) : enqueue_copies(theirs, mine, copies);
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
  if (bundle.waited++ == 0) {
    if (++awaited_ == bundles_.bundles.size()) rank_.in_pass = false;
    const device::DeviceScope scope(rank_.compute.device());
    const device::StreamHandle compute = rank_.compute.get();
    if (!bundle.offers) {
      const auto own = static_cast<std::size_t>(&bundle - bundles_.bundles.data());
      if (std::erase(copying_, own) > 0) device::wait_for(compute, copied_[own]->get());
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
  }
  return bundle.offers ? ends_[at].bytes : moved_[at];
}

}  // namespace usp::comm
