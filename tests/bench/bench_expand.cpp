// SPDX-License-Identifier: Apache-2.0
// What re-planning a packed batch costs per rank and step: 1M tokens in 4,000 documents on 64 ranks, pruned,
// causal, one pass. `Rank` builds the rank's own TokenMap and expands; the others measure the two parts
// alone.
#include "usp/schedule/expand.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>

namespace {

using namespace usp;

constexpr i64 tokens = i64{1} << 20;
constexpr i64 documents = 4000;

std::vector<i64> packed_borders() {
  std::mt19937_64 random(20261128);
  std::uniform_int_distribution<i64> anywhere(1, tokens - 1);
  std::vector<i64> cu{0, tokens};
  for (i64 i = 1; i < documents; ++i) cu.push_back(anywhere(random));
  std::sort(cu.begin(), cu.end());
  return cu;
}

AttentionPlan plan_of(const benchmark::State& state) {
  AttentionPlan plan;
  plan.mesh = {1, static_cast<int>(state.range(0)), static_cast<int>(64 / state.range(0))};
  plan.layout = state.range(1) == 0 ? LayoutKind::zigzag : LayoutKind::balanced;
  plan.method = methods()[static_cast<std::size_t>(state.range(3))];
  plan.shape.q_tokens = plan.shape.kv_tokens = tokens;
  plan.shape.query_heads = 64;
  plan.shape.kv_heads = 8;
  plan.shape.head_dim_qk = plan.shape.head_dim_v = 128;
  plan.band = {0, unbounded};
  plan.prune = true;
  return plan;
}

Pass pass_of(const benchmark::State& state) {
  return state.range(2) == 0 ? Pass::forward : Pass::backward;
}

/// Ranks of the run in turn, so that the mean is over the whole mesh.
int next_rank(int& rank) {
  rank = (rank + 29) % 64;
  return rank;
}

void Rank(benchmark::State& state) {
  const AttentionPlan plan = plan_of(state);
  const Documents batch = Documents::packed(packed_borders());
  schedule::CompactSchedule compact;
  schedule::generate(plan, schedule::TokenMap(plan, batch).heads().shared_kv(), compact);
  int rank = 0;
  std::size_t slices = 0;
  for (auto _ : state) {
    const schedule::TokenMap geometry(plan, batch);
    const schedule::RankSchedule schedule =
        schedule::expand(geometry, compact, next_rank(rank), pass_of(state));
    slices = schedule.slices.size();
    benchmark::DoNotOptimize(slices);
  }
  state.counters["slices"] = static_cast<double>(slices);
}

void GeometryOnly(benchmark::State& state) {
  const AttentionPlan plan = plan_of(state);
  const Documents batch = Documents::packed(packed_borders());
  for (auto _ : state) {
    const schedule::TokenMap geometry(plan, batch);
    benchmark::DoNotOptimize(&geometry);
  }
}

/// All ranks read one geometry, as a planner does.
void ExpandOnly(benchmark::State& state) {
  const AttentionPlan plan = plan_of(state);
  const schedule::TokenMap geometry(plan, Documents::packed(packed_borders()));
  schedule::CompactSchedule compact;
  schedule::generate(plan, geometry.heads().shared_kv(), compact);
  int rank = 0;
  for (auto _ : state) {
    const schedule::RankSchedule schedule =
        schedule::expand(geometry, compact, next_rank(rank), pass_of(state));
    benchmark::DoNotOptimize(schedule.slices.data());
  }
}

void meshes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"ring", "balanced", "backward", "method"})->Unit(benchmark::kMillisecond);
  for (int ring : {1, 2, 4, 8, 16, 32, 64})
    for (int layout : {0, 1})
      for (int pass : {0, 1}) b->Args({ring, layout, pass, static_cast<long>(index_of(Method::ring))});
}
void geometries(benchmark::internal::Benchmark* b) {
  b->ArgNames({"ring", "balanced", "backward", "method"})->Unit(benchmark::kMillisecond);
  for (int ring : {1, 8, 64})
    for (int layout : {0, 1}) b->Args({ring, layout, 0, static_cast<long>(index_of(Method::ring))});
}
void methods(benchmark::internal::Benchmark* b) {
  for (long method :
       {static_cast<long>(index_of(Method::ring_direct)), static_cast<long>(index_of(Method::all_gather_kv))})
    for (int pass : {0, 1}) b->Args({64, 0, pass, method});
}

BENCHMARK(Rank)->Apply(meshes)->Apply(methods);
BENCHMARK(GeometryOnly)->Apply(geometries);
BENCHMARK(ExpandOnly)->Apply(meshes);

}  // namespace

BENCHMARK_MAIN();
