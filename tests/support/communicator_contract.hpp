// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "communicator_payload.hpp"

#include "usp/comm/agreement.hpp"

#include <cstring>
#include <functional>
#include <numeric>
#include <thread>
#include <utility>

/// What every communicator promises, as checks that all its ranks run. They throw where it does not hold.
namespace usp::contract {

struct Check {
  const char* name;
  std::function<void(comm::Communicator&)> run;
};

inline Random shared_random(std::uint64_t seed) {
  return Random(seed);
}
inline Random own_random(std::uint64_t seed, const comm::Communicator& communicator) {
  return Random(seed * 1000 + static_cast<std::uint64_t>(communicator.rank()) + 1);
}

/// Random messages between all pairs, the same list on every rank.
inline std::vector<Planned> random_plan(int ranks, int count, i64 greatest, Random& random) {
  std::vector<Planned> plan;
  for (int i = 0; i < count && ranks > 1; ++i) {
    Planned planned{.source = static_cast<int>(pick(random, 0, ranks - 1)),
                    .bytes = pick(random, 0, greatest),
                    .tick = static_cast<std::int32_t>(pick(random, 0, 3))};
    planned.target = static_cast<int>((planned.source + pick(random, 1, ranks - 1)) % ranks);
    planned.tag = i;
    if (i % 3 == 1) planned.tag += i64{1} << 40;
    if (i % 7 == 2) planned.tag = -planned.tag - 1;
    plan.push_back(planned);
  }
  return plan;
}

inline void random_messages(comm::Communicator& communicator) {
  for (std::uint64_t trial = 0; trial < 8; ++trial) {
    Random shared = shared_random(trial);
    Random mine = own_random(trial, communicator);
    const auto plan = random_plan(communicator.size(), 40, trial % 6 == 5 ? 9000 : 900, shared);
    Batch batch(plan, communicator.rank(), mine);
    batch.post(communicator, mine);
    batch.finish(communicator, mine);
  }
}

inline void one_shape_of_exchange(comm::Communicator& communicator, const std::vector<Planned>& plan) {
  Random mine = own_random(77, communicator);
  Batch batch(plan, communicator.rank(), mine);
  batch.post(communicator, mine);
  batch.finish(communicator, mine);
}

inline void all_to_all_hop_gather(comm::Communicator& communicator) {
  const int ranks = communicator.size();
  std::vector<Planned> all_to_all;
  std::vector<Planned> hop;
  std::vector<Planned> gather;
  for (int source = 0; source < ranks; ++source) {
    for (int target = 0; target < ranks; ++target) {
      if (source == target) continue;
      all_to_all.push_back({source, target, (source + 1) * 100 + target * 7, 5, 0});
      gather.push_back({source, target, 300, 6, 0});
    }
    if (ranks > 1) hop.push_back({source, (source + 1) % ranks, 5000, 7, 0});
  }
  for (const auto& plan : {all_to_all, hop, gather, hop, all_to_all})
    one_shape_of_exchange(communicator, plan);
}

inline void empty_messages(comm::Communicator& communicator) {
  if (communicator.size() == 1) return;
  const int right = (communicator.rank() + 1) % communicator.size();
  const comm::StridedBytes nothing{.run_bytes = 0};
  const comm::Message messages[] = {
      {.peer = right, .send = true, .tag = 1, .operation = "empty"},
      {.peer = right, .send = false, .tag = 2, .operation = "empty", .regions = &nothing, .region_count = 1}};
  comm::Ticket tickets[2];
  communicator.post(messages, 2, tickets);
  require(communicator.test(tickets[0]).has_value(), "an empty message is complete at once");
  communicator.wait(tickets[1]);
  communicator.post(messages, 0, tickets);
}

inline void many_in_flight(comm::Communicator& communicator) {
  const int ranks = communicator.size();
  std::vector<Planned> plan;
  for (int source = 0; source < ranks && ranks > 1; ++source)
    for (i64 i = 0; i < 300; ++i) plan.push_back({source, (source + 1) % ranks, 24, i, 0});
  one_shape_of_exchange(communicator, plan);
}

/// One byte-for-byte message of plain memory.
inline comm::Message plain(int peer, bool send, i64 tag, const comm::StridedBytes& region) {
  return {
      .peer = peer, .send = send, .tag = tag, .operation = "plain", .regions = &region, .region_count = 1};
}

/// Rank 0 sends only once rank 1 has seen that nothing is there.
inline void test_tells_the_truth(comm::Communicator& communicator) {
  if (communicator.size() == 1 || communicator.rank() > 1) return;
  const int peer = 1 - communicator.rank();
  i64 value = communicator.rank() == 0 ? 4711 : 0;
  i64 go = 1;
  const comm::StridedBytes value_region{.data = reinterpret_cast<std::byte*>(&value),
                                        .run_bytes = sizeof value};
  const comm::StridedBytes go_region{.data = reinterpret_cast<std::byte*>(&go), .run_bytes = sizeof go};
  comm::Ticket value_ticket = 0;
  comm::Ticket go_ticket = 0;
  const bool sender = communicator.rank() == 0;
  const comm::Message value_message = plain(peer, sender, 1, value_region);
  const comm::Message go_message = plain(peer, !sender, 2, go_region);
  if (!sender) {
    communicator.post(&value_message, 1, &value_ticket);
    require(!communicator.test(value_ticket).has_value(), "test() before the message was sent");
  }
  communicator.post(&go_message, 1, &go_ticket);
  communicator.wait(go_ticket);
  if (sender) communicator.post(&value_message, 1, &value_ticket);
  while (!communicator.test(value_ticket)) std::this_thread::yield();
  require(value == 4711, "the value that test() announced");
}

/// Payloads that take many calls to copy arrive without a wait.
inline void progress_moves_payloads(comm::Communicator& communicator) {
  const int ranks = communicator.size();
  if (ranks == 1) return;
  std::vector<Planned> plan;
  for (int source = 0; source < ranks; ++source) {
    plan.push_back({source, (source + 1) % ranks, 150'001, 1, 0});
    plan.push_back({source, (source + 1) % ranks, 9'001, 2, 0});
  }
  Random mine = own_random(78, communicator);
  Batch batch(plan, communicator.rank(), mine);
  batch.post(communicator, mine);
  for (std::size_t i = 0; i < batch.tickets.size(); ++i) {
    while (!communicator.test(batch.tickets[i])) {
      communicator.progress();
      std::this_thread::yield();
    }
    if (!batch.messages[i].send) batch.payloads[i].check(batch.messages[i].peer, batch.messages[i].tag);
  }
}

inline void bytes_are_what_was_sent(comm::Communicator& communicator) {
  Random shared = shared_random(5);
  Random mine = own_random(5, communicator);
  const auto plan = random_plan(communicator.size(), 60, 3000, shared);
  Batch batch(plan, communicator.rank(), mine);
  batch.post(communicator, mine);
  const std::array<i64, 2> moved = batch.finish(communicator, mine);
  i64 sent = 0, received = 0;
  for (const Planned& planned : plan) {
    if (planned.source == communicator.rank()) sent += planned.bytes;
    if (planned.target == communicator.rank()) received += planned.bytes;
  }
  require(moved[0] == received && moved[1] == sent, "bytes that waits return");
}

inline void exchange_in(comm::Communicator& group, std::uint64_t seed) {
  Random shared = shared_random(seed);
  Random mine = own_random(seed, group);
  Batch batch(random_plan(group.size(), 30, 500, shared), group.rank(), mine);
  batch.post(group, mine);
  batch.finish(group, mine);
}

inline std::vector<int> every(int ranks, int first, int step) {
  std::vector<int> list;
  for (int rank = first; rank < ranks; rank += step) list.push_back(rank);
  return list;
}

inline void groups(comm::Communicator& communicator) {
  const int ranks = communicator.size();
  require(communicator.group({ranks - 1}) == nullptr, "a group of one is null");
  require(communicator.group({}) == nullptr, "an empty group is null");
  std::vector<int> reversed = every(ranks, 0, 1);
  std::reverse(reversed.begin(), reversed.end());
  const auto all = communicator.group(reversed);
  require((all != nullptr) == (ranks > 1), "the group of all");
  if (all == nullptr) return;
  require(all->rank() == ranks - 1 - communicator.rank() && all->size() == ranks, "order of a group's ranks");
  const auto even = every(ranks, 0, 2);
  const auto odd = every(ranks, 1, 2);
  const auto first = communicator.group(even);
  const auto second = communicator.group(odd);
  const bool is_even = communicator.rank() % 2 == 0;
  require((first != nullptr) == (is_even && even.size() > 1), "members of the even group");
  require((second != nullptr) == (!is_even && odd.size() > 1), "members of the odd group");
  comm::Communicator* mine = is_even ? first.get() : second.get();
  // The same tags are in flight in three communicators at once.
  Random shared = shared_random(9);
  const auto plan = random_plan(ranks, 30, 500, shared);
  Random own = own_random(9, communicator);
  Batch outer(plan, communicator.rank(), own);
  Batch inner(plan, all->rank(), own);
  outer.post(communicator, own);
  inner.post(*all, own);
  if (mine != nullptr) exchange_in(*mine, 10);
  inner.finish(*all, own);
  outer.finish(communicator, own);
  if (mine == nullptr) return;
  i64 sum = 1;
  mine->all_reduce_sum(&sum, 1);
  require(sum == mine->size(), "a sum within a group");
  const auto nested = mine->group({0, mine->size() - 1});
  if (nested != nullptr) exchange_in(*nested, 11);
}

inline void wrong_groups(comm::Communicator& communicator) {
  for (const std::vector<int>& list :
       {std::vector<int>{0, 0}, std::vector<int>{0, communicator.size()}, std::vector<int>{-1}}) {
    bool refused = false;
    try {
      (void)communicator.group(list);
    } catch (const UsageError&) {
      refused = true;
    }
    require(refused, "a list with strangers or repetitions is refused");
  }
}

/// A term whose sums depend on their order.
template <class T>
T term(int rank, i64 at) {
  std::minstd_rand random(static_cast<unsigned>(rank * 1000003 + at + 1));
  random.discard(2);
  return static_cast<T>((static_cast<double>(random()) / 1e9 - 1) * (rank % 2 == 0 ? 1e6 : 1.0));
}

template <class T>
T expected_sum(int ranks, i64 at) {
  T sum = term<T>(0, at);
  for (int rank = 1; rank < ranks; ++rank) sum += term<T>(rank, at);
  return sum;
}

template <class T>
void sums(comm::Communicator& communicator) {
  const int ranks = communicator.size();
  for (const i64 count : {i64{0}, i64{1}, i64{ranks - 1}, i64{ranks}, i64{1001},
                          ranks <= 3 ? 65536 * ranks + i64{5} : i64{5}}) {
    std::vector<T> data(static_cast<std::size_t>(count));
    const i64 step = count > 2000 ? 997 : 1;  // recomputing each term is slow
    for (i64 i = 0; i < count; ++i)
      data[static_cast<std::size_t>(i)] = term<T>(communicator.rank(), i % 2003);
    communicator.all_reduce_sum(data.data(), count);
    for (i64 i = 0; i < count; i += step) {
      const T wanted = expected_sum<T>(ranks, i % 2003);
      require(std::memcmp(&data[static_cast<std::size_t>(i)], &wanted, sizeof wanted) == 0,
              "all_reduce_sum of " + std::to_string(count) + " in rank order, bit for bit");
    }
  }
}

template <class T>
void scattered_sums(comm::Communicator& communicator) {
  const int ranks = communicator.size();
  for (const i64 count : {i64{0}, i64{3}, ranks <= 3 ? i64{65541} : i64{777}}) {
    std::vector<T> parts(static_cast<std::size_t>(count * ranks));
    for (i64 i = 0; i < count * ranks; ++i)
      parts[static_cast<std::size_t>(i)] = term<T>(communicator.rank(), i);
    std::vector<T> mine(static_cast<std::size_t>(count));
    communicator.reduce_scatter_sum(parts.data(), mine.data(), count);
    const i64 step = count > 2000 ? 97 : 1;
    for (i64 i = 0; i < count; i += step) {
      const T wanted = expected_sum<T>(ranks, communicator.rank() * count + i);
      require(std::memcmp(&mine[static_cast<std::size_t>(i)], &wanted, sizeof wanted) == 0,
              "reduce_scatter_sum in rank order, bit for bit");
    }
  }
}

inline void collectives(comm::Communicator& communicator) {
  const int ranks = communicator.size();
  const int rank = communicator.rank();
  communicator.barrier();
  std::vector<int> all(static_cast<std::size_t>(ranks) * 3);
  const int mine[] = {rank, rank * rank, -rank};
  communicator.all_gather(mine, all.data(), sizeof mine);
  for (int peer = 0; peer < ranks; ++peer)
    require(all[static_cast<std::size_t>(peer) * 3 + 1] == peer * peer, "all_gather");
  for (int root = 0; root < ranks; ++root) {
    std::vector<int> data(501, rank == root ? root + 5 : -1);
    communicator.broadcast(data.data(), static_cast<i64>(data.size() * sizeof(int)), root);
    require(data.front() == root + 5 && data.back() == root + 5, "broadcast");
  }
  sums<float>(communicator);
  sums<double>(communicator);
  scattered_sums<float>(communicator);
  scattered_sums<double>(communicator);
  std::vector<i64> counts(17, rank + (i64{1} << 53));
  communicator.all_reduce_sum(counts.data(), 17);
  require(counts[16] == ranks * (ranks - 1) / 2 + ranks * (i64{1} << 53), "all_reduce_sum of integers");
}

inline void agreement(comm::Communicator& communicator) {
  comm::agree(communicator, {{"plan", 1}, {"shape", 2}});
  if (communicator.size() < 3) return;
  const bool odd_one = communicator.rank() == 1;
  bool thrown = false;
  try {
    comm::agree(communicator, {{"plan", 1}, {"shape", odd_one ? 3U : 2U}});
  } catch (const comm::DisagreementError& error) {
    thrown = true;
    require(error.field() == "shape" && error.ranks() == std::vector<int>{1}, "who disagrees about what");
    require(std::string(error.what()).find("rank 1 holds another 'shape'") == 0, error.what());
  }
  require(thrown, "a disagreement is an error on every rank");
  bool other_fields = false;
  try {
    comm::agree(communicator, odd_one ? std::vector<comm::AgreedField>{{"plan", 1}}
                                      : std::vector<comm::AgreedField>{{"plan", 1}, {"dtype", 1}});
  } catch (const comm::DisagreementError&) {
    other_fields = true;
  }
  require(other_fields, "other fields are an error on every rank");
}

/// Messages and collectives in another order on every other rank, and two groups in opposite orders: nobody
/// waits for an order that was never agreed (NVIDIA/nccl #1192, #783).
inline void orders_may_differ(comm::Communicator& communicator) {
  const int ranks = communicator.size();
  const auto other = communicator.group(every(ranks, 0, 1));
  if (other == nullptr) return;
  const bool odd = communicator.rank() % 2 == 1;
  Random shared = shared_random(12);
  Random mine = own_random(12, communicator);
  const auto plan = random_plan(ranks, 30, 4000, shared);
  Batch first(plan, communicator.rank(), mine);
  Batch second(plan, communicator.rank(), mine);
  i64 sum = 1;
  if (odd) {
    second.post(*other, mine);
    communicator.all_reduce_sum(&sum, 1);
    first.post(communicator, mine);
    second.finish(*other, mine);
    first.finish(communicator, mine);
  } else {
    first.post(communicator, mine);
    second.post(*other, mine);
    communicator.all_reduce_sum(&sum, 1);
    second.finish(*other, mine);
    first.finish(communicator, mine);
  }
  require(sum == ranks, "a sum between messages");
}

inline std::vector<Check> communicator_checks() {
  return {{"random messages", random_messages},
          {"all-to-all, hop and gather", all_to_all_hop_gather},
          {"empty messages", empty_messages},
          {"many in flight", many_in_flight},
          {"test()", test_tells_the_truth},
          {"progress()", progress_moves_payloads},
          {"traffic", bytes_are_what_was_sent},
          {"groups", groups},
          {"orders that differ", orders_may_differ},
          {"wrong groups", wrong_groups},
          {"collectives", collectives},
          {"agreement", agreement}};
}

/// All checks, one after another on the same communicator.
inline void run_checks(comm::Communicator& communicator) {
  for (const Check& check : communicator_checks()) {
    try {
      check.run(communicator);
    } catch (const std::exception& error) {
      throw std::runtime_error(std::string(check.name) + ": " + error.what());
    }
    communicator.barrier();
  }
}

}  // namespace usp::contract
