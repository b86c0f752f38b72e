// SPDX-License-Identifier: Apache-2.0
#include "channel_offers.hpp"

#include "../failure/faults.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>

namespace usp::comm {
namespace {

/// An offer as it travels, before its regions. The link is an address of this process.
struct Offer {
  i64 tag = 0, bytes = 0, slot = 0, region_count = 0;
  std::int32_t tick = 0, due = 0;
  std::int32_t push = 0, reserved = 0;
  EventLink* link = nullptr;
};

using Bytes = std::vector<std::byte>;

void append(Bytes& out, const void* data, std::size_t bytes) {
  const auto* const begin = static_cast<const std::byte*>(data);
  out.insert(out.end(), begin, begin + bytes);
}

[[noreturn]] void refuse(Communicator& control, const ChannelEnd& end, const std::string& what) {
  CommunicationFault fault;
  fault.operation = end.operation;
  fault.tick = end.tick;
  fault.rank = control.rank();
  fault.message = fmt::format("{}: rank {} and rank {} {}; the ranks do not follow the same schedule",
                              name_operation(end.operation, end.tick), control.rank(), end.peer, what);
  control.abort(fault);
  throw CommunicationError(fault);
}

/// Every rank's bytes to every other.
[[nodiscard]] std::vector<Bytes> exchange_bytes(Communicator& control, const std::vector<Bytes>& mine) {
  const int ranks = control.size(), me = control.rank();
  std::vector<i64> sizes(mine.size());
  for (std::size_t i = 0; i < mine.size(); ++i) sizes[i] = static_cast<i64>(mine[i].size());
  std::vector<i64> all(mine.size() * mine.size());
  control.all_gather(sizes.data(), all.data(), static_cast<i64>(sizes.size() * sizeof(i64)));
  std::vector<Bytes> theirs(mine.size());
  std::vector<StridedBytes> regions(2 * mine.size());
  std::vector<Message> messages;
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer == me) continue;
    const auto at = static_cast<std::size_t>(peer);
    theirs[at].resize(static_cast<std::size_t>(all[at * mine.size() + static_cast<std::size_t>(me)]));
    regions[2 * at].data = const_cast<std::byte*>(mine[at].data());
    regions[2 * at].run_bytes = sizes[at];
    regions[2 * at + 1].data = theirs[at].data();
    regions[2 * at + 1].run_bytes = static_cast<i64>(theirs[at].size());
    for (const bool send : {true, false})
      messages.push_back({.peer = peer,
                          .send = send,
                          .tag = 0,
                          .tick = -1,
                          .operation = "connect",
                          .regions = &regions[2 * at + (send ? 0 : 1)],
                          .region_count = 1});
  }
  std::vector<Ticket> tickets(messages.size());
  control.post(messages.data(), static_cast<i64>(messages.size()), tickets.data());
  for (const Ticket ticket : tickets) control.wait(ticket);
  return theirs;
}

/// The channels that this rank copies, by what names them on both ends.
using Copied = std::map<std::tuple<int, i64, bool>, std::int32_t>;

class OfferReader {
 public:
  OfferReader(const Bytes& bytes, int peer) : bytes_(bytes), peer_(peer) {}
  [[nodiscard]] bool done() const { return at_ == bytes_.size(); }
  template <class T>
  [[nodiscard]] T take() {
    T value;
    if (bytes_.size() - at_ < sizeof value)
      throw EnvironmentError(
          fmt::format("rank {} connects with half an offer; the ranks run different versions of usp", peer_));
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }

 private:
  const Bytes& bytes_;
  int peer_;
  std::size_t at_ = 0;
};

}  // namespace

std::size_t Bundles::max_slots() const {
  std::size_t most = 0;
  for (const Bundle& bundle : bundles)
    if (bundle.offers) most = std::max(most, bundle.slot + 1);
  return most;
}

Bundles bundles_of(const std::vector<ChannelEnd>& ends) {
  Bundles all;
  all.of_channel.assign(ends.size(), 0);
  all.offered.resize(ends.size());
  std::map<std::tuple<int, std::int32_t, std::int32_t, bool, bool>, std::size_t> known;
  std::map<int, std::size_t> slots;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const ChannelEnd& end = ends[i];
    if (!end.offers()) continue;
    const auto [at, is_new] =
        known.try_emplace({end.peer, end.tick, end.due, end.gated, end.early}, all.bundles.size());
    if (is_new) {
      Bundle& bundle = all.bundles.emplace_back();
      bundle.first = end;
      bundle.first.regions = nullptr;
      bundle.offers = true;
      bundle.slot = slots[end.peer]++;
    }
    all.bundles[at->second].add(end, static_cast<std::int32_t>(i));
    all.of_channel[i] = at->second;
  }
  return all;
}

void exchange_offers(Communicator& control, const PeerArena& arena, const std::vector<ChannelEnd>& ends,
                     EventBoard* board, Bundles& all) {
  std::vector<Bytes> mine(static_cast<std::size_t>(control.size()));
  for (const Bundle& bundle : all.bundles)
    for (const std::int32_t channel : bundle.channels) {
      const ChannelEnd& end = ends[static_cast<std::size_t>(channel)];
      Bytes& out = mine[static_cast<std::size_t>(end.peer)];
      Offer offer{end.tag, end.bytes, static_cast<i64>(bundle.slot), end.region_count};
      offer.tick = end.tick, offer.due = end.due, offer.push = end.push ? 1 : 0, offer.link = bundle.link;
      append(out, &offer, sizeof offer);
      for (i64 i = 0; i < end.region_count; ++i) {
        const ArenaRegion region = end.regions[i].bytes() > 0 ? arena.name_of(end.regions[i]) : ArenaRegion{};
        append(out, &region, sizeof region);
      }
    }
  Copied copied;
  for (std::size_t i = 0; i < ends.size(); ++i)
    if (!ends[i].offers()) copied[{ends[i].peer, ends[i].tag, ends[i].push}] = static_cast<std::int32_t>(i);
  const std::vector<Bytes> theirs = exchange_bytes(control, mine);
  std::map<std::pair<int, i64>, std::size_t> known;
  for (int peer = 0; peer < control.size(); ++peer) {
    for (OfferReader in(theirs[static_cast<std::size_t>(peer)], peer); !in.done();) {
      const auto offer = in.take<Offer>();
      const auto found = copied.find({peer, offer.tag, offer.push != 0});
      if (found == copied.end()) {
        ChannelEnd end;
        end.peer = peer, end.tick = offer.tick, end.operation = "connect";
        refuse(control, end, fmt::format("disagree on a transfer of {} bytes", offer.bytes));
      }
      const std::int32_t channel = found->second;
      const ChannelEnd& end = ends[static_cast<std::size_t>(channel)];
      copied.erase(found);
      if (offer.bytes != end.bytes)
        refuse(control, end, fmt::format("exchange {} and {} bytes", end.bytes, offer.bytes));
      if (offer.tick != end.tick || offer.due != end.due)
        refuse(control, end, "start or end a transfer in different ticks");
      const auto [at, is_new] = known.try_emplace({peer, offer.slot}, all.bundles.size());
      if (is_new) {
        Bundle& bundle = all.bundles.emplace_back();
        bundle.first = end;
        bundle.slot = static_cast<std::size_t>(offer.slot);
        bundle.link = board == nullptr ? nullptr : offer.link;
      }
      all.bundles[at->second].add(end, channel);
      all.of_channel[static_cast<std::size_t>(channel)] = at->second;
      std::vector<ArenaRegion>& regions = all.offered[static_cast<std::size_t>(channel)];
      for (i64 i = 0; i < offer.region_count; ++i) {
        regions.push_back(in.take<ArenaRegion>());
        if (regions.back().shape.bytes() > 0) arena.check_region(peer, regions.back());
      }
    }
  }
  if (!copied.empty())
    refuse(control, ends[static_cast<std::size_t>(copied.begin()->second)], "disagree on a transfer");
}

}  // namespace usp::comm
