// SPDX-License-Identifier: Apache-2.0
// Candidates per second on one core: one attention call, its compact schedule generated and priced, over all
// meshes, methods, layouts, head chunks, dK/dV returns and axis orders of P ranks. "Cold" builds the pricer
// (head splits, work profiles, link patterns) inside the measured region, once per sweep, as a search does.
// Layouts and axis orders of one schedule lie side by side: the pricer generates it once for them.
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/pricing.hpp"
#include "usp/topology/compose.hpp"

#include <benchmark/benchmark.h>

namespace usp {
namespace {

struct Candidate {
  AttentionPlan plan;
  Placement placement;
};

void add_variants(std::vector<Candidate>& out, AttentionPlan plan) {
  const bool chained = plan.method == Method::ring || plan.method == Method::double_ring;
  for (const int chunks : {1, 2, 4}) {
    if (chunks * plan.mesh.ulysses > plan.shape.query_heads) continue;
    for (const DkvReturn back : {DkvReturn::circulate, DkvReturn::direct}) {
      if (!chained && back == DkvReturn::direct) continue;
      for (const LayoutKind layout : {LayoutKind::contiguous, LayoutKind::zigzag, LayoutKind::striped})
        for (const AxisOrder order : {AxisOrder::ulysses_inner, AxisOrder::ring_inner}) {
          plan.head_chunks = chunks;
          plan.dkv_return = back;
          plan.layout = layout;
          Candidate candidate{plan, {}};
          candidate.placement.order = order;
          out.push_back(candidate);
        }
    }
  }
}

std::vector<Candidate> candidates(int ranks, const AttentionShape& shape) {
  std::vector<Candidate> all;
  AttentionPlan plan;
  plan.shape = shape;
  plan.band = {0, unbounded};
  for (int ulysses = 1; ulysses <= ranks && ulysses <= shape.query_heads; ++ulysses) {
    if (ranks % ulysses != 0) continue;
    const int ring = ranks / ulysses;
    for (const Method method : {Method::ring, Method::ring_direct, Method::all_gather_kv}) {
      plan.mesh = {1, ring, ulysses};
      plan.method = method;
      add_variants(all, plan);
    }
    plan.method = Method::double_ring;
    for (int inner = 2; inner < ring; ++inner) {
      if (ring % inner != 0) continue;
      plan.mesh = {ring / inner, inner, ulysses};
      add_variants(all, plan);
    }
  }
  return all;
}

struct Setup {
  explicit Setup(int ranks, int heads) {
    topology::ClusterRequest request;
    request.source = "dgx-h100";
    request.nodes = ranks / 8;
    cluster = topology::compose(request);
    calibration = calibration_of(cluster);
    shape = {1, i64{1} << 20, i64{1} << 20, heads, 8, 128, 128, DType::bf16};
    documents = Documents::single(shape.q_tokens, shape.kv_tokens);
    all = candidates(ranks, shape);
  }
  double sweep(AttentionPricer& pricer) const {
    double least = 1e9;
    for (const Candidate& c : all) least = std::min(least, pricer.price(c.plan, c.placement).seconds());
    return least;
  }
  topology::Cluster cluster;
  Calibration calibration;
  AttentionShape shape;
  Documents documents;
  std::vector<Candidate> all;
};

void count(benchmark::State& state, const Setup& setup) {
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(setup.all.size()));
  state.counters["candidates"] = static_cast<double>(setup.all.size());
}

void cold(benchmark::State& state) {
  const Setup setup(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)));
  for (auto _ : state) {
    LinkPricer links(setup.cluster, setup.calibration);
    AttentionPricer pricer(links, setup.shape, setup.documents, {});
    benchmark::DoNotOptimize(setup.sweep(pricer));
  }
  count(state, setup);
}

void warm(benchmark::State& state) {
  const Setup setup(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)));
  LinkPricer links(setup.cluster, setup.calibration);
  AttentionPricer pricer(links, setup.shape, setup.documents, {});
  benchmark::DoNotOptimize(setup.sweep(pricer));
  for (auto _ : state) benchmark::DoNotOptimize(setup.sweep(pricer));
  count(state, setup);
}

BENCHMARK(cold)->ArgNames({"ranks", "heads"})->ArgsProduct({{8, 64, 1024}, {64, 128}});
BENCHMARK(warm)->ArgNames({"ranks", "heads"})->ArgsProduct({{8, 64, 1024}, {64, 128}});

}  // namespace
}  // namespace usp

BENCHMARK_MAIN();
