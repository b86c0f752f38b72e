// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/communicator.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

/// Random messages for the contract of communicators: values name their source, tag and position; both ends
/// cut the payload on their own.
namespace usp::contract {

using Random = std::mt19937_64;

inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("contract: " + what);
}

inline i64 pick(Random& random, i64 low, i64 high) {
  return std::uniform_int_distribution<i64>(low, high)(random);
}

/// What position `at` of a message holds.
inline std::byte value_at(int source, i64 tag, i64 at) {
  const auto mixed = static_cast<std::uint64_t>(source + 1) * 0x9E3779B97F4A7C15U ^
                     static_cast<std::uint64_t>(tag) * 0xC2B2AE3D27D4EB4FU ^
                     static_cast<std::uint64_t>(at) * 0x165667B19E3779F9U;
  return static_cast<std::byte>(mixed >> 37U);
}

/// Memory for one payload as a list of random regions with gaps.
class Payload {
 public:
  static constexpr std::byte gap{0xEE};

  Payload(i64 bytes, Random& random) {
    std::vector<i64> offsets;
    i64 extent = 0;
    for (i64 left = bytes; left > 0;) {
      const comm::StridedBytes region = random_region(left, random);
      offsets.push_back(extent + pick(random, 0, 5));
      extent = offsets.back() + span(region) + pick(random, 0, 5);
      regions.push_back(region);
      left -= region.bytes();
      if (pick(random, 0, 4) == 0) {  // a region without payload in between
        regions.push_back({.count = {1, 0, 1}, .run_bytes = 8});
        offsets.push_back(0);
      }
    }
    memory.assign(static_cast<std::size_t>(extent) + 1, gap);
    for (std::size_t i = 0; i < regions.size(); ++i) regions[i].data = memory.data() + offsets[i];
  }

  /// Calls visit(byte, position) for the payload in order.
  template <class Visit>
  void each(const Visit& visit) {
    i64 at = 0;
    for (const comm::StridedBytes& region : regions)
      for (i64 i = 0; i < region.count[0]; ++i)
        for (i64 j = 0; j < region.count[1]; ++j)
          for (i64 k = 0; k < region.count[2]; ++k)
            for (i64 byte = 0; byte < region.run_bytes; ++byte)
              visit(region.data[i * region.stride[0] + j * region.stride[1] + k * region.stride[2] + byte],
                    at++);
  }
  void fill(int source, i64 tag) {
    each([&](std::byte& byte, i64 at) { byte = value_at(source, tag, at); });
  }
  /// Throws unless the payload is what `source` sent and the gaps are untouched.
  void check(int source, i64 tag) {
    each([&](std::byte& byte, i64 at) {
      require(byte == value_at(source, tag, at), "byte " + std::to_string(at) + " of tag " +
                                                     std::to_string(tag) + " from " + std::to_string(source));
      byte = gap;
    });
    require(std::all_of(memory.begin(), memory.end(), [](std::byte byte) { return byte == gap; }),
            "a byte between runs was written");
  }

  std::vector<comm::StridedBytes> regions;
  std::vector<std::byte> memory;

 private:
  static comm::StridedBytes random_region(i64 left, Random& random) {
    comm::StridedBytes region;
    region.run_bytes = pick(random, 1, std::min<i64>(left, 40));
    i64 room = left / region.run_bytes;
    for (int dimension = 2; dimension >= 0; --dimension) {
      region.count[dimension] = pick(random, 1, std::min<i64>(room, 6));
      room /= region.count[dimension];
    }
    region.stride[2] = region.run_bytes + pick(random, 0, 1) * pick(random, 0, 9);
    region.stride[1] = region.stride[2] * region.count[2] + pick(random, 0, 1) * pick(random, 0, 9);
    region.stride[0] = region.stride[1] * region.count[1] + pick(random, 0, 1) * pick(random, 0, 9);
    return region;
  }
  static i64 span(const comm::StridedBytes& region) { return region.stride[0] * region.count[0]; }
};

/// A message as everybody knows it.
struct Planned {
  int source = 0;
  int target = 0;
  i64 bytes = 0;
  i64 tag = 0;
  std::int32_t tick = 0;
};

/// This rank's part of a list of messages, with its memory.
class Batch {
 public:
  Batch(const std::vector<Planned>& plan, int rank, Random& mine) {
    for (const Planned& planned : plan) {
      if (planned.source == rank) add(planned, true, mine);
      if (planned.target == rank) add(planned, false, mine);
    }
    std::vector<std::size_t> order(messages.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), mine);
    std::vector<comm::Message> shuffled;
    std::deque<Payload> moved;
    for (const std::size_t i : order) {
      shuffled.push_back(messages[i]);
      moved.push_back(std::move(payloads[i]));
    }
    messages = std::move(shuffled);
    payloads = std::move(moved);
    for (std::size_t i = 0; i < messages.size(); ++i) messages[i].regions = payloads[i].regions.data();
  }

  /// Posts in a few calls.
  void post(comm::Communicator& communicator, Random& mine) {
    tickets.resize(messages.size());
    for (i64 at = 0, count = static_cast<i64>(messages.size()); at < count;) {
      const i64 part = pick(mine, 1, count - at);
      communicator.post(messages.data() + at, part, tickets.data() + at);
      at += part;
    }
  }
  /// Waits in random order, partly by test(), and checks what arrived. Returns the bytes that were received,
  /// and sent.
  std::array<i64, 2> finish(comm::Communicator& communicator, Random& mine) {
    std::array<i64, 2> moved{};
    std::vector<std::size_t> order(messages.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), mine);
    for (const std::size_t i : order) {
      std::optional<i64> bytes;
      if (pick(mine, 0, 2) == 0) bytes = communicator.test(tickets[i]);
      moved[messages[i].send ? 1 : 0] += bytes ? *bytes : communicator.wait(tickets[i]);
      if (!messages[i].send) payloads[i].check(messages[i].peer, messages[i].tag);
      communicator.progress();
    }
    return moved;
  }

  std::vector<comm::Message> messages;
  std::deque<Payload> payloads;
  std::vector<comm::Ticket> tickets;

 private:
  void add(const Planned& planned, bool send, Random& mine) {
    Payload& payload = payloads.emplace_back(planned.bytes, mine);
    if (send) payload.fill(planned.source, planned.tag);
    messages.push_back({.peer = send ? planned.target : planned.source,
                        .send = send,
                        .tag = planned.tag,
                        .tick = planned.tick,
                        .operation = "contract",
                        .region_count = static_cast<i64>(payload.regions.size())});
  }
};

}  // namespace usp::contract
