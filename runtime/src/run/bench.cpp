// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/bench.hpp"

#include "call_parts.hpp"
#include "run_request_json.hpp"

#include "usp/base/error.hpp"
#include "usp/base/json_format.hpp"
#include "usp/base/units.hpp"
#include "usp/schedule/words.hpp"

#include <algorithm>
#include <cstdio>
#include <thread>

namespace usp {
namespace {

AttentionPlan on_one_rank(AttentionPlan plan) {
  plan.mesh = {1, 1, 1};
  plan.dkv_return = DkvReturn::circulate;
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
  char line[160];
  std::snprintf(line, sizeof line, "ring %d x ulysses %d (%s), %s kernel, median of %d\n",
                report.plan.mesh.ring(), report.plan.mesh.ulysses, report.communicator.c_str(),
                report.kernel.c_str(), report.repeat);
  std::string text = line;
  std::snprintf(line, sizeof line, "  %-9s %12s %12s %10s %12s %8s\n", "pass", "time", "bytes", "GFLOP/s",
                "single rank", "of it");
  text += line;
  for (const PassBench& pass : report.passes) {
    std::snprintf(line, sizeof line, "  %-9s %12s %12s %10.2f %12s %7.1f%%\n", word_of(pass.pass).data(),
                  format_seconds(pass.seconds).c_str(), format_bytes(static_cast<double>(pass.bytes)).c_str(),
                  pass.gflop_s(), format_seconds(pass.single_seconds).c_str(),
                  100 * report.share_of_single(pass));
    text += line;
  }
  std::snprintf(line, sizeof line,
                "  single rank: the same kernel, whole problem, one thread; of it: single / (%d x time), "
                "for %d ranks on %d cores\n",
                report.workers(), report.plan.mesh.size(), report.cores);
  return text + line;
}

std::string bench_json(const BenchReport& report) {
  Json json = json_header("usp.bench");
  json["request"] = request_json(report.request);
  json["mesh"] = run_mesh_json(report.plan.mesh);
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
