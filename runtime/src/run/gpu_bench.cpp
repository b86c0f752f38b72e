// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/gpu_bench.hpp"

#include "call_parts.hpp"
#include "recipe_json.hpp"
#include "run_request_json.hpp"

#include "usp/base/error.hpp"
#include "usp/base/json_format.hpp"
#include "usp/base/table.hpp"
#include "usp/base/units.hpp"
#include "usp/runtime/devices.hpp"
#include "usp/schedule/generate.hpp"
#include "usp/schedule/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace usp {
namespace {

int index(Pass pass) {
  return pass == Pass::forward ? 0 : 1;
}

/// Ranks of one ring row talk along the Ulysses axis, all others along the ring.
AxisTraffic axis_traffic(const Mesh& mesh, const RunResult& run, Pass pass, bool ulysses) {
  AxisTraffic axis;
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    const int row = mesh.ring_of(static_cast<int>(rank));
    i64 mine = 0;
    for (const TransferRecord& t : run.ranks[rank].record[index(pass)].transfers)
      if (t.send && (mesh.ring_of(t.peer) == row) == ulysses) mine += t.executed_bytes;
    axis.bytes += mine;
    axis.max_bytes = std::max(axis.max_bytes, mine);
  }
  return axis;
}

double exposed_seconds(const std::vector<TickTimes>& ticks) {
  double seconds = 0;
  for (const TickTimes& tick : ticks) seconds += tick.end_s - tick.computed_s;
  return seconds;
}

/// Ticks of the rank that waits most, with what the plan's schedule says of them.
std::vector<GpuTickBench> ticks_of(const schedule::CompactPass& compact, const RunResult& run, Pass pass) {
  const auto waits = [pass](const RankResult& rank) {
    return exposed_seconds(rank.record[index(pass)].ticks);
  };
  const RankResult& rank =
      *std::max_element(run.ranks.begin(), run.ranks.end(),
                        [&](const RankResult& a, const RankResult& b) { return waits(a) < waits(b); });
  std::vector<GpuTickBench> list;
  for (const TickTimes& times : rank.record[index(pass)].ticks) {
    GpuTickBench tick;
    tick.computed_s = times.computed_s - times.posted_s;
    tick.exposed_s = times.end_s - times.computed_s;
    const auto number = static_cast<std::int32_t>(list.size());
    for (const schedule::TransferOp& move : compact.transfers) {
      const std::string word(word_of(move.name));
      const bool known =
          std::find(tick.transfers.begin(), tick.transfers.end(), word) != tick.transfers.end();
      if (move.due == number && move.peers != schedule::Peers::self && !known) tick.transfers.push_back(word);
    }
    for (const schedule::ComputeOp& work : compact.work) tick.computes = tick.computes || work.tick == number;
    list.push_back(std::move(tick));
  }
  return list;
}

/// Ticks that wait for more than this share of their pass are explained.
constexpr double explained_share = 0.01;

std::string exposed_text(const GpuBenchReport& report) {
  std::string text;
  for (const GpuPassBench& pass : report.passes)
    for (std::size_t t = 0; t < pass.ticks.size(); ++t) {
      const GpuTickBench& tick = pass.ticks[t];
      if (tick.exposed_s <= explained_share * pass.seconds) continue;
      const std::string why =
          tick.transfers.empty() ? "it waits for no transfer: for a rank that is later"
          : tick.computes ? fmt::format("longer than the {} of compute beside it, or a peer that is later",
                                        format_seconds(tick.computed_s))
                          : "nothing is computed in this tick that could hide it";
      text +=
          fmt::format("  exposed in tick {} of {}: {}, {:.1f}% of the pass; {}{}{}\n", t, word_of(pass.pass),
                      format_seconds(tick.exposed_s), 100 * tick.exposed_s / pass.seconds,
                      fmt::join(tick.transfers, ", "), tick.transfers.empty() ? "" : ": ", why);
    }
  return text;
}

/// Every different name once, in order of its first rank.
std::vector<std::string> distinct(const std::vector<std::string>& names) {
  std::vector<std::string> list;
  for (const std::string& name : names)
    if (std::find(list.begin(), list.end(), name) == list.end()) list.push_back(name);
  return list;
}

std::string times_table(const GpuBenchReport& report) {
  using Align = TextTable::Align;
  TextTable table;
  table.column("pass");
  for (const char* name : {"time", "TF/s", "per rank", "exposed"}) table.column(name, Align::right);
  for (const GpuPassBench& pass : report.passes)
    table.row({std::string(word_of(pass.pass)), format_seconds(pass.seconds), format_fixed(pass.tflop_s(), 2),
               format_fixed(pass.tflop_s() / report.plan.mesh.size(), 2),
               format_fixed(pass.exposed_s() * 1e3, 3) + " ms"});
  return table.str(2);
}

/// The axes that have peers.
void for_axes(const GpuBenchReport& report, const GpuPassBench& pass,
              const std::function<void(const char*, int, Transport, const AxisTraffic&)>& use) {
  const Mesh& mesh = report.plan.mesh;
  if (mesh.ulysses > 1) use("ulysses", mesh.ulysses, report.ulysses_transport, pass.ulysses);
  if (mesh.ring() > 1) use("ring", mesh.ring(), report.ring_transport, pass.ring);
}

std::string axes_table(const GpuBenchReport& report) {
  using Align = TextTable::Align;
  TextTable table;
  table.column("pass");
  table.column("axis");
  table.column("ranks", Align::right);
  table.column("transport");
  table.column("bytes", Align::right);
  table.column("GB/s", Align::right);
  for (const GpuPassBench& pass : report.passes)
    for_axes(report, pass, [&](const char* name, int degree, Transport by, const AxisTraffic& axis) {
      table.row({std::string(word_of(pass.pass)), name, std::to_string(degree), std::string(word_of(by)),
                 format_bytes(static_cast<double>(axis.bytes)), format_fixed(pass.gb_s(axis), 2)});
    });
  return table.str(2);
}

}  // namespace

double GpuPassBench::exposed_s() const {
  double sum = 0;
  for (const GpuTickBench& tick : ticks) sum += tick.exposed_s;
  return sum;
}

GpuBenchReport gpu_bench_report(const AttentionPlan& plan, const Documents& documents,
                                const RunOptions& options, const RunResult& timed, const RunResult& watched) {
  GpuBenchReport report;
  report.plan = plan;
  report.kernel = timed.kernel;
  report.communicator = timed.communicator;
  for (const RankResult& rank : timed.ranks) report.devices.push_back(rank.device);
  report.notes = timed.notes();
  report.ulysses_transport = options.ulysses_transport;
  report.ring_transport = options.ring_transport;
  report.deterministic = options.deterministic;
  report.repeat = options.repeat;
  const double pairs = visible_pairs(plan, documents);
  schedule::CompactSchedule compact;
  schedule::generate(plan, false, compact, schedule::Binds::without);
  for (const Pass pass : {Pass::forward, Pass::backward})
    if (pass == Pass::forward || timed.training)
      report.passes.push_back({pass, timed.seconds(pass), pairs * flops_per_pair(plan.shape, pass),
                               axis_traffic(plan.mesh, timed, pass, true),
                               axis_traffic(plan.mesh, timed, pass, false),
                               ticks_of(compact.of(pass), watched, pass)});
  return report;
}

std::optional<GpuBenchReport> gpu_bench_call(const AttentionPlan& plan, const Documents& documents,
                                             const CallTensors& tensors, RunOptions options) {
  if (!runs_on_gpu(plan, options))
    throw UsageError("the kernel of this run computes on the host, which has no stream to time");
  options.collect = false;
  options.warm_up = std::max(1, options.warm_up);
  const auto runs = run_by_stream(plan, documents, tensors, options);
  if (!runs) return std::nullopt;
  return gpu_bench_report(plan, documents, options, runs->timed, runs->watched);
}

std::string gpu_bench_text(const GpuBenchReport& report) {
  const Mesh& mesh = report.plan.mesh;
  std::string text =
      fmt::format("ring {} x ulysses {} ({}), {} kernel, {}{}, median of {}\n  on {}\n{}", mesh.ring(),
                  mesh.ulysses, report.communicator, report.kernel, word_of(report.plan.shape.dtype),
                  report.deterministic ? ", deterministic" : "", report.repeat,
                  fmt::join(distinct(report.devices), ", "), times_table(report));
  if (mesh.size() > 1) text += axes_table(report) + exposed_text(report);
  return text +
         "  time: on the streams of the GPUs; exposed: what ticks wait beyond their compute, on the rank "
         "that "
         "waits most\n  bytes: sent by all ranks; GB/s: of the rank that sends most, over the pass\n";
}

namespace {

Json ticks_json(const GpuPassBench& pass) {
  Json list = Json::array();
  for (const GpuTickBench& tick : pass.ticks)
    list.push_back(
        {{"computed_s", tick.computed_s}, {"exposed_s", tick.exposed_s}, {"transfers", tick.transfers}});
  return list;
}

}  // namespace

std::string gpu_bench_json(const GpuBenchReport& report) {
  const Mesh& mesh = report.plan.mesh;
  Json json = json_header("usp.bench_gpu");
  json["request"] = request_json(report.request);
  json["mesh"] = mesh_json(mesh);
  json["ranks"] = mesh.size();
  json["devices"] = report.devices;
  json["communicator"] = report.communicator;
  json["backend"] = word_of(report.plan.backend);
  json["kernel"] = report.kernel;
  json["dtype"] = word_of(report.plan.shape.dtype);
  json["passes"] = Json::array();
  for (const GpuPassBench& pass : report.passes) {
    Json axes = Json::array();
    for_axes(report, pass, [&](const char* name, int degree, Transport by, const AxisTraffic& axis) {
      axes.push_back({{"axis", name},
                      {"ranks", degree},
                      {"transport", word_of(by)},
                      {"bytes", axis.bytes},
                      {"max_bytes", axis.max_bytes},
                      {"bytes_per_s", static_cast<double>(axis.max_bytes) / pass.seconds}});
    });
    json["passes"].push_back({{"pass", word_of(pass.pass)},
                              {"time_s", pass.seconds},
                              {"flop", pass.flops},
                              {"flop_per_s", pass.flops / pass.seconds},
                              {"exposed_s", pass.exposed_s()},
                              {"ticks", ticks_json(pass)},
                              {"axes", std::move(axes)}});
  }
  return json.dump(2) + "\n";
}

}  // namespace usp
