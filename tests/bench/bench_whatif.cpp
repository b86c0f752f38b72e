// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/model_config.hpp"
#include "usp/planner/whatif.hpp"
#include "usp/topology/compose.hpp"

#include <benchmark/benchmark.h>

#include <string>

namespace usp {
namespace {

/// 100 sequence lengths times 100 NIC rates; counts points per second.
void whatif_grid(benchmark::State& state, const char* model_name, int nodes) {
  topology::ClusterRequest source;
  source.source = "dgx-h100";
  source.nodes = nodes;
  const topology::Cluster cluster = topology::compose(source);
  const Calibration calibration = load_calibration("h100_sxm");
  const Model model = load_model(model_name);
  WhatIfRequest request;
  request.base.cluster = &cluster;
  request.base.calibration = &calibration;
  request.base.model = &model;
  request.base.workload.seq = 1 << 20;
  request.axes = {parse_axis("seq=128k:1712k:+16k"), parse_axis("nic=10:109:+1")};
  request.break_evens = false;
  i64 points = 0;
  double searches = 0;
  for (auto _ : state) {
    const WhatIfResult result = what_if(request);
    points += static_cast<i64>(result.points.size());
    searches = static_cast<double>(result.searches);
  }
  state.SetItemsProcessed(points);
  state.counters["points"] = static_cast<double>(points) / static_cast<double>(state.iterations());
  state.counters["searches"] = searches;
}

BENCHMARK_CAPTURE(whatif_grid, llama_8b_32_gpus, "llama-3.1-8b", 4)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);

}  // namespace
}  // namespace usp
