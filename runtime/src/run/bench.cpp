// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/bench.hpp"

#include "call_parts.hpp"
#include "recipe_json.hpp"
#include "run_request_json.hpp"

#include "usp/base/error.hpp"
#include "usp/base/json_format.hpp"
#include "usp/base/units.hpp"
#include "usp/schedule/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

namespace usp {
namespace {

AttentionPlan on_one_rank(AttentionPlan plan) {
  plan.mesh = {1, 1, 1};
  plan.dkv_return = DkvReturn::circulate;
  plan.split_own_block = plan.gated = false;
  plan.gate_phases = 1;
  plan.head_chunks = 1;
  plan.replicated_q.clear();
  plan.replicated_k.clear();
  return plan;
}

}  // namespace

int BenchReport::workers() const {
  return std::min(plan.mesh.size(), cores);
}

double BenchReport::share_of_single(const PassBench& pass) const {
  return pass.single_seconds / (workers() * pass.seconds);
}

std::optional<BenchReport> bench_call(const AttentionPlan& plan, const Documents& documents,
                                      const CallTensors& tensors, RunOptions options) {
  options.collect = false;
  options.warm_up = std::max(1, options.warm_up);
  options.comm.watchdog_s *= 1 + plan.mesh.size();  // ranks wait while one does the work of all
  const auto runs = run_interleaved(plan, on_one_rank(plan), documents, tensors, options);
  if (!runs) return std::nullopt;
  const RunResult& run = runs->ranks;
  BenchReport report;
  report.plan = plan;
  report.kernel = run.kernel;
  report.communicator = run.communicator;
  report.repeat = options.repeat;
  report.cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const double pairs = visible_pairs(plan, documents);
  for (const Pass pass : {Pass::forward, Pass::backward})
    if (pass == Pass::forward || options.training)
      report.passes.push_back({pass, run.seconds(pass), runs->alone.seconds(pass), run.executed_bytes(pass),
                               pairs * flops_per_pair(plan.shape, pass)});
  return report;
}

std::string bench_text(const BenchReport& report) {
  std::string text =
      fmt::format("ring {} x ulysses {} ({}), {} kernel, median of {}\n", report.plan.mesh.ring(),
                  report.plan.mesh.ulysses, report.communicator, report.kernel, report.repeat);
  text += fmt::format("  {:<9} {:>12} {:>12} {:>10} {:>12} {:>8}\n", "pass", "time", "bytes", "GFLOP/s",
                      "single rank", "of it");
  for (const PassBench& pass : report.passes)
    text +=
        fmt::format("  {:<9} {:>12} {:>12} {:>10.2f} {:>12} {:>7.1f}%\n", word_of(pass.pass),
                    format_seconds(pass.seconds), format_bytes(static_cast<double>(pass.bytes)),
                    pass.gflop_s(), format_seconds(pass.single_seconds), 100 * report.share_of_single(pass));
  return text + fmt::format(
                    "  single rank: the same kernel, whole problem, one thread; of it: single / ({} x time), "
                    "for {} ranks on {} cores\n",
                    report.workers(), report.plan.mesh.size(), report.cores);
}

std::string bench_json(const BenchReport& report) {
  Json json = json_header("usp.bench");
  json["request"] = request_json(report.request);
  json["mesh"] = mesh_json(report.plan.mesh);
  json["ranks"] = report.plan.mesh.size();
  json["communicator"] = report.communicator;
  json["kernel"] = report.kernel;
  json["cores"] = report.cores;
  json["workers"] = report.workers();
  json["passes"] = Json::array();
  for (const PassBench& pass : report.passes)
    json["passes"].push_back({{"pass", word_of(pass.pass)},
                              {"time_s", pass.seconds},
                              {"bytes", pass.bytes},
                              {"flop_per_s", pass.flops / pass.seconds},
                              {"single_rank_s", pass.single_seconds},
                              {"efficiency", report.share_of_single(pass)}});
  return json.dump(2) + "\n";
}

}  // namespace usp
