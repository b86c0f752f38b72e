// SPDX-License-Identifier: Apache-2.0
// Faults on purpose: whatever breaks one message or one band is noticed, by an exception or by numbers.
#include "schedule_trial.hpp"

#include <gtest/gtest.h>

#include <set>

namespace usp::test {
namespace {

/// Cases in which every number matters: causal self attention with a sink, pruned, so that each query sees a
/// key, each key is seen, and no message carries what nobody uses.
std::vector<ScheduleCase> telling_cases(int count, std::uint64_t seed) {
  CaseGenerator g(seed);
  std::vector<ScheduleCase> cases;
  while (static_cast<int>(cases.size()) < count) {
    ScheduleCase c = g.draw();
    if (c.plan.mesh.size() == 1 || c.plan.shape.q_tokens != c.plan.shape.kv_tokens) continue;
    if (c.plan.shape.q_tokens < 2 * c.plan.mesh.size()) continue;
    c.documents = Documents::packed(c.documents.cu_q);
    c.plan.band.diff_min = 0;
    if (c.plan.band.diff_max < 0) c.plan.band.diff_max = unbounded;
    c.plan.prune = c.plan.sink = true;
    c.plan.replicated_q.clear();
    c.plan.replicated_k.clear();
    c.plan.shape.head_dim_qk = c.plan.shape.head_dim_v = 2;
    cases.push_back(c);
  }
  return cases;
}

/// True when a run with these couriers is seen to be wrong.
bool noticed(Trial& trial, Pass pass, const Courier& courier) {
  try {
    const Errors e = pass == Pass::forward ? trial.run(courier) : trial.run({}, courier);
    return e.worst() > 1e-9;
  } catch (const std::runtime_error&) {
    return true;
  }
}

/// The messages of a pass that come from another rank.
std::vector<MessageKey> messages(const Trial& trial, Pass pass) {
  std::vector<MessageKey> keys;
  for (std::size_t p = 0; p < trial.ranks().size(); ++p)
    for (const schedule::Transfer& t : trial.ranks()[p].schedule(pass).transfers)
      if (!t.send && t.peer != static_cast<int>(p)) keys.emplace_back(t.move, t.peer, static_cast<int>(p));
  return keys;
}

TEST(ScheduleFaults, AnyMessageDroppedIsNoticed) {
  int dropped = 0;
  for (const ScheduleCase& c : telling_cases(40, 21)) {
    Trial trial(c, 1);
    ASSERT_LT(trial.run().worst(), 1e-10);
    for (Pass pass : both_passes)
      for (const MessageKey& lost : messages(trial, pass)) {
        ++dropped;
        ASSERT_TRUE(noticed(trial, pass,
                            [&](Network&, const MessageKey& key, const schedule::RankSchedule&,
                                const schedule::Transfer&) { return key == lost ? 0 : 1; }))
            << "move " << std::get<0>(lost) << " from " << std::get<1>(lost) << " to " << std::get<2>(lost)
            << " pass " << static_cast<int>(pass) << ", " << describe(c);
      }
  }
  EXPECT_GT(dropped, 1000);
}

TEST(ScheduleFaults, AnyMessageAppliedTwiceIsNoticed) {
  for (const ScheduleCase& c : telling_cases(15, 22)) {
    Trial trial(c, 2);
    for (Pass pass : both_passes)
      for (const MessageKey& doubled : messages(trial, pass))
        ASSERT_TRUE(noticed(trial, pass,
                            [&](Network&, const MessageKey& key, const schedule::RankSchedule&,
                                const schedule::Transfer&) { return key == doubled ? 2 : 1; }))
            << "move " << std::get<0>(doubled) << ", " << describe(c);
  }
}

/// The slot still holds what arrived there before: a wait that was forgotten.
TEST(ScheduleFaults, AnyStaleSlotIsNoticed) {
  int stale = 0;
  for (const ScheduleCase& c : telling_cases(40, 23)) {
    Trial trial(c, 3);
    for (Pass pass : both_passes)
      for (const MessageKey& late : messages(trial, pass)) {
        std::map<std::pair<int, std::pair<Tensor, BufferSlot>>, std::vector<double>> last;
        bool applied = false;
        const bool seen = noticed(trial, pass,
                                  [&](Network& network, const MessageKey& key,
                                      const schedule::RankSchedule& s, const schedule::Transfer& t) {
                                    const schedule::BufferRegion& region =
                                        s.regions[static_cast<std::size_t>(t.regions.begin)];
                                    const BufferName name = buffer_of(s, region.buffer).name;
                                    std::vector<double>& before = last[{s.rank, {name.tensor, name.place}}];
                                    std::vector<double>& payload = network.at(key);
                                    if (key == late && !before.empty()) {
                                      std::vector<double> old = before;
                                      old.resize(payload.size(), before.back());
                                      applied = old != payload;  // chunks that share a KV head send it again
                                      payload = old;
                                    }
                                    before = payload;
                                    return 1;
                                  });
        if (!applied) continue;
        ++stale;
        ASSERT_TRUE(seen) << "move " << std::get<0>(late) << ", " << describe(c);
      }
  }
  EXPECT_GT(stale, 300);
}

/// Two ranks get each other's message of one move. (At one rank the order of two additions is free.)
TEST(ScheduleFaults, SwappedPeersAreNoticed) {
  int swapped = 0;
  for (const ScheduleCase& c : telling_cases(60, 24)) {
    // Ranks that share a KV head hold equal copies and add to one sum: a swap between them changes nothing.
    if (Heads(c.plan.shape.query_heads, c.plan.shape.kv_heads, c.plan.mesh.ulysses, 1).shared_kv()) continue;
    Trial trial(c, 4);
    for (Pass pass : both_passes) {
      const std::vector<MessageKey> keys = messages(trial, pass);
      for (std::size_t i = 0; i + 1 < keys.size(); i += 3) {
        const auto other = std::find_if(
            keys.begin() + static_cast<std::ptrdiff_t>(i) + 1, keys.end(), [&](const MessageKey& k) {
              return std::get<0>(k) == std::get<0>(keys[i]) && std::get<2>(k) != std::get<2>(keys[i]);
            });
        if (other == keys.end()) continue;
        bool done = false, differ = false;
        const bool seen = noticed(trial, pass,
                                  [&](Network& network, const MessageKey& key, const schedule::RankSchedule&,
                                      const schedule::Transfer&) {
                                    if (!done && (key == keys[i] || key == *other)) {
                                      done = true;
                                      differ = network.at(keys[i]) != network.at(*other);
                                      std::swap(network.at(keys[i]), network.at(*other));
                                    }
                                    return 1;
                                  });
        if (!differ) continue;
        ++swapped;
        ASSERT_TRUE(seen) << "move " << std::get<0>(keys[i]) << ", " << describe(c);
      }
    }
  }
  EXPECT_GT(swapped, 300);
}

TEST(ScheduleFaults, BandOffByOneIsNoticed) {
  int bands = 0;
  for (const ScheduleCase& c : telling_cases(60, 25))
    for (int low : {-1, 0, 1})
      for (int high : {-1, 0, 1}) {
        AttentionPlan wrong = c.plan;
        wrong.band.diff_min += low;
        if (wrong.band.diff_max != unbounded) wrong.band.diff_max += high;
        // The mask must differ: short documents may hide either end of a band.
        const Mask meant(c.plan, c.documents), used(wrong, c.documents);
        bool differs = false;
        for (i64 q = 0; q < c.plan.shape.q_tokens; ++q)
          for (i64 k = 0; k < c.plan.shape.kv_tokens; ++k)
            differs = differs || meant.sees(q, k) != used.sees(q, k);
        Trial trial(c, wrong, 5);
        ASSERT_EQ(noticed(trial, Pass::forward, {}), differs) << low << " " << high << ", " << describe(c);
        bands += differs ? 1 : 0;
      }
  EXPECT_GT(bands, 200);
}

/// A sink that joins twice or never is a factor in the sum of exponentials.
TEST(ScheduleFaults, ForgottenSinkIsNoticed) {
  for (const ScheduleCase& c : telling_cases(20, 26)) {
    AttentionPlan wrong = c.plan;
    wrong.sink = false;
    Trial trial(c, wrong, 6);
    ASSERT_TRUE(noticed(trial, Pass::forward, {})) << describe(c);
  }
}

}  // namespace
}  // namespace usp::test
