// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "event_links.hpp"
#include "peer_arena.hpp"

#include "usp/comm/data_plane.hpp"

#include <cstdint>
#include <vector>

/// The one handshake of channels. Of a transfer, one end copies: the receiver, or of a push the sender. The
/// other end offers its regions, which lie in its arena, to the end that copies.
namespace usp::comm {

/// Transfers with one peer that start and end together, all gated or none, all early or none, and are copied
/// by one end: they share a slot of flags.
struct Bundle {
  ChannelEnd first;  ///< without regions
  bool offers = false;
  std::size_t slot = 0;  ///< among the bundles that one end offers to the other
  std::vector<std::int32_t> channels;
  EventLink* link = nullptr;  ///< between ranks of one process
  i64 bytes = 0;              ///< of all channels
  int waited = 0;             ///< channels, in this pass
  bool exposed = true;        ///< all channels are

  void add(const ChannelEnd& end, std::int32_t channel) {
    channels.push_back(channel);
    bytes += end.bytes;
    exposed = exposed && end.exposed;
  }
};

/// What one pass of a rank offers and copies.
struct Bundles {
  std::vector<Bundle> bundles;                    ///< in the order of their starts
  std::vector<std::size_t> of_channel;            ///< bundle per channel
  std::vector<std::vector<ArenaRegion>> offered;  ///< per channel that this rank copies: the peer's regions
  /// The greatest count of slots that this rank offers to a peer.
  [[nodiscard]] std::size_t max_slots() const;
};

/// Local: the bundles that this rank offers, with their slots.
[[nodiscard]] Bundles bundles_of(const std::vector<ChannelEnd>& ends);
/// Collective: tells peers what is offered, and learns what they offer. Links of `board` go with the offers
/// between threads; null: of processes. Throws CommunicationError where ends do not match.
void exchange_offers(Communicator& control, const PeerArena& arena, const std::vector<ChannelEnd>& ends,
                     EventBoard* board, Bundles& bundles);

}  // namespace usp::comm
