// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "segmented_ring.hpp"

#include "usp/schedule/gate_phases.hpp"
#include "usp/schedule/generate.hpp"
#include "usp/schedule/plan.hpp"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace usp::test {

struct ScheduleCase {
  AttentionPlan plan;
  Documents documents;
};

/// Draws legal problems over everything a schedule supports: small enough to run densely, odd enough to hurt.
class CaseGenerator {
 public:
  explicit CaseGenerator(std::uint64_t seed) : random_(seed), gated_(seed) {}

  [[nodiscard]] i64 between(i64 low, i64 high) {
    return std::uniform_int_distribution<i64>(low, high)(random_);
  }
  [[nodiscard]] bool chance(double p) { return std::uniform_real_distribution<>(0, 1)(random_) < p; }
  template <class T>
  [[nodiscard]] T pick(const std::vector<T>& from) {
    return from[static_cast<std::size_t>(between(0, static_cast<i64>(from.size()) - 1))];
  }
  [[nodiscard]] std::mt19937_64& engine() { return random_; }

  /// @param ranks 0: drawn from 1..8
  [[nodiscard]] ScheduleCase draw(int ranks = 0) {
    ScheduleCase c;
    AttentionPlan& plan = c.plan;
    draw_mesh(plan, ranks > 0 ? ranks : static_cast<int>(pick<i64>({1, 2, 3, 4, 5, 6, 8})));
    const auto [query, kv] = pick<std::pair<int, int>>(
        {{4, 2}, {7, 7}, {7, 1}, {8, 2}, {6, 3}, {4, 4}, {2, 1}, {12, 4}, {9, 3}, {1, 1}});
    plan.shape.query_heads = query;
    plan.shape.kv_heads = kv;
    plan.shape.head_dim_qk = static_cast<int>(between(1, 3));
    plan.shape.head_dim_v = static_cast<int>(between(1, 3));
    plan.shape.batch = between(1, 2);
    plan.layout = pick<LayoutKind>(
        {LayoutKind::contiguous, LayoutKind::zigzag, LayoutKind::striped, LayoutKind::balanced});
    plan.head_chunks = static_cast<int>(pick<i64>({1, 1, 2, 3}));
    plan.prune = chance(0.6);
    plan.save_exchanged_qkv = chance(0.7);
    plan.sink = chance(0.4);
    plan.return_lse = chance(0.4);
    plan.backend = pick<Backend>({Backend::cpu, Backend::mma, Backend::cudnn});
    plan.dkv_return =
        pick<DkvReturn>({DkvReturn::circulate, DkvReturn::circulate, DkvReturn::direct, DkvReturn::cycle});
    if (plan.method == Method::ring_direct || plan.method == Method::all_gather_kv)
      plan.dkv_return = DkvReturn::circulate;
    plan.split_own_block = schedule::may_split_own_block(plan) && chance(0.5);
    plan.gated = schedule::may_gate(plan) && std::bernoulli_distribution(0.6)(gated_);
    if (plan.gated)
      plan.gate_phases = std::uniform_int_distribution<int>(
          1, std::min(plan.mesh.ring(), schedule::max_gate_phases))(gated_);
    draw_tokens(c);
    return c;
  }

  /// As draw, with lengths and heads that divide evenly, and more tokens. @param per_rank tokens per rank / 8
  [[nodiscard]] ScheduleCase draw_even(int ranks, i64 per_rank) {
    ScheduleCase c = draw(ranks);
    AttentionShape& shape = c.plan.shape;
    shape.query_heads = 2 * c.plan.mesh.ulysses;
    shape.kv_heads = c.plan.mesh.ulysses;
    shape.q_tokens = shape.kv_tokens = 8 * ranks * per_rank;
    c.plan.replicated_q.clear();
    c.plan.replicated_k.clear();
    const i64 documents = pick<i64>({1, 1, 3, 7});
    c.documents = Documents::packed(borders(shape.q_tokens, documents));
    const i64 window = between(shape.q_tokens / 8, shape.q_tokens);
    c.plan.band = pick<Band>({{0, unbounded}, {0, unbounded}, {0, window - 1}, {}});
    return c;
  }

 private:
  void draw_mesh(AttentionPlan& plan, int ranks) {
    std::vector<int> divisors;
    for (int d = 1; d <= ranks; ++d)
      if (ranks % d == 0) divisors.push_back(d);
    const int ring = pick(divisors);
    plan.mesh = {1, ring, ranks / ring};
    plan.method = pick<Method>(
        {Method::ring, Method::ring_direct, Method::all_gather_kv, Method::double_ring, segmented_ring});
    if (plan.method != Method::double_ring) return;
    std::vector<int> inner;
    for (int d : divisors)
      if (ring % d == 0) inner.push_back(d);
    plan.mesh.ring_inner = pick(inner);
    plan.mesh.ring_outer = ring / plan.mesh.ring_inner;
  }

  [[nodiscard]] std::vector<i64> borders(i64 tokens, i64 documents) {
    std::vector<i64> cu{0, tokens};
    for (i64 i = 1; i < documents; ++i) cu.push_back(between(0, tokens));
    std::sort(cu.begin(), cu.end());
    return cu;
  }

  void draw_tokens(ScheduleCase& c) {
    AttentionPlan& plan = c.plan;
    const bool cross = chance(0.3);
    plan.shape.q_tokens = between(1, 45);
    plan.shape.kv_tokens = cross ? between(1, 45) : plan.shape.q_tokens;
    const i64 documents = chance(0.6) ? between(1, 6) : 1;
    c.documents.cu_q = borders(plan.shape.q_tokens, documents);
    c.documents.cu_k = cross ? borders(plan.shape.kv_tokens, documents) : c.documents.cu_q;
    const i64 window = between(1, 12);
    plan.band = pick<Band>({{0, unbounded},
                            {0, unbounded},
                            {-unbounded, unbounded},
                            {0, window - 1},
                            {-between(0, 5), window - 1}});
    for (std::size_t d = 0; d < static_cast<std::size_t>(documents); ++d) {
      const i64 q_size = c.documents.cu_q[d + 1] - c.documents.cu_q[d],
                k_size = c.documents.cu_k[d + 1] - c.documents.cu_k[d];
      c.documents.shift.push_back(c.documents.cu_k[d] - c.documents.cu_q[d] +
                                  (plan.band.diff_min == 0 ? k_size - q_size : 0));
    }
    if (!chance(0.35)) return;
    const i64 most = std::min(plan.shape.q_tokens, plan.shape.kv_tokens);
    const i64 count = chance(0.2) ? between(1, most) : std::min<i64>(3, most);
    plan.replicated_k = {{0, count}};
    if (chance(0.3) && count < most - 2) plan.replicated_k.push_back({count + 1, count + 2});
    if (!cross || chance(0.5)) plan.replicated_q = plan.replicated_k;
  }

  std::mt19937_64 random_;
  std::mt19937_64 gated_;  ///< apart, so that it changes nothing else
};

[[nodiscard]] inline std::string describe(const ScheduleCase& c) {
  const AttentionPlan& p = c.plan;
  return "mesh " + std::to_string(p.mesh.ring_outer) + "x" + std::to_string(p.mesh.ring_inner) + "x" +
         std::to_string(p.mesh.ulysses) + " method " + std::string(p.method->word) + " layout " +
         std::to_string(static_cast<int>(p.layout)) + " heads " + std::to_string(p.shape.query_heads) + "/" +
         std::to_string(p.shape.kv_heads) + " tokens " + std::to_string(p.shape.q_tokens) + "/" +
         std::to_string(p.shape.kv_tokens) + " chunks " + std::to_string(p.head_chunks) + " prune " +
         std::to_string(p.prune) + " keep " + std::to_string(p.save_exchanged_qkv) + " return " +
         std::to_string(static_cast<int>(p.dkv_return)) + " split " + std::to_string(p.split_own_block) +
         " gated " + std::to_string(p.gated) + " phases " + std::to_string(p.gate_phases) + " documents " +
         std::to_string(c.documents.count()) + " replicated " + std::to_string(p.replicated_q.size()) + "/" +
         std::to_string(p.replicated_k.size()) + " sink " + std::to_string(p.sink);
}

}  // namespace usp::test
