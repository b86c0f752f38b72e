// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "machine.hpp"

#include "usp/comm/data_plane.hpp"
#include "usp/kernels/memory.hpp"
#include "usp/planner/network_rates.hpp"

#include <memory>
#include <vector>

namespace usp::measure {

/// What one rank does in an exchange that all ranks make at once.
struct ExchangeRole {
  NetworkOperation operation = NetworkOperation::hop;
  std::vector<int> group;  ///< ranks of its group, in order, or of its ring; empty: the rank is idle
};

/// The role of a rank where `key.groups` groups of `key.ranks_per_host` ranks on `key.hosts` hosts exchange
/// at once: on every set of so many neighbouring hosts. One host: inside every host. Hops between hosts go
/// from each host to the next, by ranks_per_host ranks of each.
[[nodiscard]] ExchangeRole role_of(const NetworkKey& key, const Machine& machine, int rank);
/// Of the first ranks of two hosts, while all others are idle.
[[nodiscard]] ExchangeRole role_between(int first_host, int second_host, const Machine& machine, int rank);

/// How an all-to-all lies in memory.
struct ExchangeShape {
  i64 run_bytes = 512;  ///< contiguous, of a row that goes to one rank
  bool strided = true;  ///< what goes to one rank is read out of rows of all heads; else it lies together
};

/// Memory that exchanges share: it only grows.
class ExchangeMemory {
 public:
  ExchangeMemory(comm::DataPlane& data_plane, kernels::Memory& memory, ExchangeShape shape = {});
  /// Collective.
  void reserve(i64 sent_bytes, i64 received_bytes);
  [[nodiscard]] std::byte* sent() const { return sent_->data(); }
  [[nodiscard]] std::byte* received() const { return received_->data(); }
  [[nodiscard]] kernels::Memory& memory() const { return memory_; }
  [[nodiscard]] const ExchangeShape& shape() const { return shape_; }

 private:
  kernels::Memory& memory_;
  ExchangeShape shape_;
  std::unique_ptr<kernels::Arena> own_sent_, received_;
  kernels::Arena* sent_ = nullptr;  ///< what peers reach, where they reach a part of memory only
};

/// One exchange of a size, connected once and made again and again, as the executor makes those of a pass:
/// the send of an all-to-all reads the heads of a peer out of rows of all heads, a reduce-scatter adds what
/// arrives.
class Exchange {
 public:
  /// Collective over the data plane's ranks. @param bytes of a message to one peer, a multiple of the
  /// memory's run_bytes
  Exchange(comm::DataPlane& data_plane, ExchangeMemory& memory, ExchangeRole role, i64 bytes);
  void start();
  void finish();
  void progress() { channels_->progress(); }
  void run() {
    start();
    finish();
  }

 private:
  void add_peer(int peer, i64 place, i64 source);
  void add(const comm::ChannelEnd& end, const comm::StridedBytes& region);
  [[nodiscard]] bool strided() const;

  ExchangeMemory& memory_;
  ExchangeRole role_;
  i64 bytes_;
  int rank_, size_;
  i64 index_ = 0;  ///< of this rank in its group
  std::vector<comm::ChannelEnd> ends_;
  std::vector<comm::StridedBytes> regions_;
  std::vector<comm::ChannelStart> starts_;
  std::unique_ptr<comm::Channels> channels_;
};

}  // namespace usp::measure
