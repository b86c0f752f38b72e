// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "communicator_contract.hpp"

#include "usp/comm/data_plane.hpp"

#include <algorithm>
#include <deque>
#include <memory>
#include <vector>

/// One set of checks for every data plane: random transfers of several ticks, connected once, in several
/// passes; every byte arrives and no other is written.
namespace usp::contract {

/// Memory in which payloads lie, and which ranks fill and read in the order of their calls. The default is
/// the host's, where every address is reached.
class PayloadMemory {
 public:
  virtual ~PayloadMemory() = default;
  /// Room for a payload; the content is what `host` holds. Some lie in memory that peers reach, some need
  /// not.
  virtual std::byte* place(std::vector<std::byte>& host, bool reached) {
    (void)reached;
    return host.data();
  }
  virtual void upload(std::byte* /*at*/, const std::vector<std::byte>& /*host*/) {}
  /// Blocks until all is there.
  virtual void download(std::vector<std::byte>& /*host*/, const std::byte* /*at*/) {}
};

/// A transfer as everybody knows it.
struct PlannedTransfer {
  Planned message;
  std::int32_t due = 0;
  bool push = false;
};

[[nodiscard]] inline std::vector<PlannedTransfer> random_transfers(int ranks, std::int32_t ticks,
                                                                   Random& shared) {
  std::vector<PlannedTransfer> all;
  for (Planned planned : random_plan(ranks, 40, 5000, shared)) {
    planned.tick = static_cast<std::int32_t>(pick(shared, 0, ticks - 1));
    planned.tag = static_cast<i64>(all.size());
    const auto due = static_cast<std::int32_t>(pick(shared, planned.tick, ticks - 1));
    all.push_back({planned, due, pick(shared, 0, 1) == 1});
  }
  std::stable_sort(all.begin(), all.end(), [](const PlannedTransfer& a, const PlannedTransfer& b) {
    return a.message.tick < b.message.tick;
  });
  return all;
}

/// This rank's ends of the transfers of a pass, and their memory.
class TransferTrial {
 public:
  TransferTrial(const std::vector<PlannedTransfer>& plan, int rank, std::int32_t ticks, Random& mine,
                PayloadMemory& memory)
      : ticks_(ticks), memory_(memory) {
    for (const PlannedTransfer& planned : plan)
      for (const bool send : {true, false})
        if ((send ? planned.message.source : planned.message.target) == rank) add(planned, send, mine);
  }
  /// After the memory has placed all payloads.
  [[nodiscard]] std::vector<comm::ChannelEnd> ends() const {
    std::vector<comm::ChannelEnd> all;
    for (const End& e : ends_) {
      all.push_back(e.end);
      if (e.end.send != e.end.push) all.back().regions = e.regions.data();
    }
    return all;
  }
  void run(comm::Channels& channels, i64 pass) {
    for (End& e : ends_) {
      std::fill(e.payload.memory.begin(), e.payload.memory.end(), Payload::gap);
      if (e.end.send) e.payload.fill(e.source, e.end.tag + 1000 * pass);
      memory_.upload(e.at, e.payload.memory);
    }
    channels.begin();
    for (std::int32_t tick = 0; tick < ticks_; ++tick) {
      std::vector<comm::ChannelStart> starts;
      for (std::size_t i = 0; i < ends_.size(); ++i)
        if (ends_[i].end.tick == tick)
          starts.push_back({static_cast<std::int32_t>(i), ends_[i].regions.data(),
                            static_cast<i64>(ends_[i].regions.size())});
      if (!starts.empty()) channels.start(starts.data(), static_cast<i64>(starts.size()));
      for (const bool send : {false, true})
        for (std::size_t i = 0; i < ends_.size(); ++i) {
          if (ends_[i].end.due != tick || ends_[i].end.send != send) continue;
          require(channels.wait(static_cast<std::int32_t>(i)) == ends_[i].end.bytes, "bytes of a transfer");
        }
      channels.progress();
    }
  }
  void check(i64 pass) {
    for (End& e : ends_) {
      memory_.download(e.payload.memory, e.at);
      e.payload.check(e.source, e.end.tag + 1000 * pass);
    }
  }

 private:
  struct End {
    Payload payload;
    comm::ChannelEnd end;
    int source = 0;
    std::byte* at = nullptr;                  ///< of the payload's memory
    std::vector<comm::StridedBytes> regions;  ///< there
  };
  void add(const PlannedTransfer& planned, bool send, Random& mine) {
    const Planned& message = planned.message;
    End& e = ends_.emplace_back(End{Payload(message.bytes, mine), {}, message.source, nullptr, {}});
    e.end.peer = send ? message.target : message.source;
    e.end.send = send, e.end.push = planned.push, e.end.exposed = pick(mine, 0, 1) == 1;
    e.end.tag = message.tag, e.end.tick = message.tick, e.end.due = planned.due;
    e.end.operation = "contract", e.end.bytes = message.bytes;
    e.at = memory_.place(e.payload.memory, send != planned.push);
    e.regions = e.payload.regions;
    for (comm::StridedBytes& region : e.regions) region.data = e.at + (region.data - e.payload.memory.data());
    e.end.region_count = static_cast<i64>(e.regions.size());
  }

  std::int32_t ticks_;
  PayloadMemory& memory_;
  std::deque<End> ends_;
};

/// Collective: several lists of transfers, connected one after another and run in turn.
inline void check_data_plane(comm::DataPlane& data_plane, PayloadMemory& memory, int lists = 3,
                             int passes = 4) {
  comm::Communicator& control = data_plane.control();
  std::deque<TransferTrial> trials;
  std::vector<std::unique_ptr<comm::Channels>> channels;
  for (int list = 0; list < lists; ++list) {
    Random shared(static_cast<std::uint64_t>(100 + list));
    Random mine(static_cast<std::uint64_t>(1000 * list + control.rank()));
    const std::int32_t ticks = 1 + list;
    trials.emplace_back(random_transfers(control.size(), ticks, shared), control.rank(), ticks, mine, memory);
    channels.push_back(data_plane.connect(trials.back().ends()));
  }
  for (int pass = 0; pass < passes; ++pass)
    for (int list = 0; list < lists; ++list) {
      const auto at = static_cast<std::size_t>(list);
      trials[at].run(*channels[at], pass);
      trials[at].check(pass);
    }
  control.barrier();
}

}  // namespace usp::contract
