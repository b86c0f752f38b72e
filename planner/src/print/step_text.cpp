// SPDX-License-Identifier: Apache-2.0
#include "print_parts.hpp"

#include "usp/base/table.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/plan_print.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace usp {
namespace {

using Align = TextTable::Align;
constexpr std::size_t max_runners = 5;

std::string gib(i64 bytes) {
  return format_fixed(static_cast<double>(bytes) / 1073741824.0, 2);
}

double device_bytes(const PlanRequest& request) {
  if (request.memory.device_bytes) return *request.memory.device_bytes;
  return request.cluster->specs.front().memory_bytes.value.value_or(0);
}

std::string job_text(const PlanRequest& request) {
  const Workload& w = request.workload;
  const topology::Cluster& cluster = *request.cluster;
  const std::size_t devices = cluster.devices.size(), hosts = cluster.nodes.size();
  std::string text = fmt::format("{} on {}: {} x {}", request.model->name, cluster.name, devices,
                                 cluster.specs.front().name);
  if (hosts > 1) text += fmt::format(" in {} hosts", hosts);
  const std::optional<i64> global = global_batch_of(request);
  text +=
      global ? fmt::format("\n{} {} x {} {} in all ({} tokens)", format_tokens(w.seq), plural(w.seq, "token"),
                           *global, plural(*global, "sequence"), format_tokens(*global * w.seq))
             : fmt::format("\n{} {} x batch {} per replica", format_tokens(w.seq), plural(w.seq, "token"),
                           w.batch);
  if (!w.documents.empty()) text += fmt::format(" of {} each", counted(w.documents.size(), "document"));
  text += fmt::format(", {}, {}, {}", w.causal ? "causal" : "full attention", word_of(w.dtype),
                      w.training ? fmt::format("training with {}", word_of(w.optimizer)) : "forward only");
  return text + "\n";
}

std::string headline(const PlanRequest& request, const PlanResult& result) {
  const PlanCandidate& best = result.best();
  const bool calibrated = result.calibration.calibrated;
  const double tokens = best.seconds_per_token > 0 ? 1 / best.seconds_per_token : 0;
  const double capacity = device_bytes(request);
  const auto devices = static_cast<double>(request.cluster->devices.size());
  return fmt::format(
      "\n{}{}\n  step      {}\n  rate      {} tokens/s, {} per device\n  MFU       {} ({} per "
      "device)\n"
      "  memory    {} of {} GiB per device{}\n",
      describe(best.choice),
      best.executable() ? "" : fmt::format("\n  executable: false: {}", best.unexecutable_reason),
      time_text(best.step_s, best.band, calibrated), rate_text(tokens), rate_text(tokens / devices),
      format_percent(best.mfu), format_flop_rate(best.flop_s), gib(best.memory.total_bytes),
      gib(static_cast<i64>(capacity)),
      best.memory.host_total_bytes > 0
          ? fmt::format(", and {} GiB of host memory per rank", gib(best.memory.host_total_bytes))
          : "");
}

/// Rows that are equal over the kinds of layer would say the same twice; the kinds get a line each.
std::string layers_text(const PlanRequest& request, const PlanCandidate& best) {
  const bool calibrated = request.calibration->calibrated;
  TextTable table;
  table.column("attention of");
  for (const char* name : {"layers", "heads", "per rank"}) table.column(name, Align::right);
  table.column(time_header("forward", calibrated), Align::right);
  table.column("exposed", Align::right);
  if (request.workload.training) {
    table.column("backward", Align::right);
    table.column("exposed", Align::right);
  }
  table.column("sent per rank, forward", Align::right);
  for (const LayerAttention& layer : best.attention) {
    const LayerKind& kind = request.model->kinds[layer.kind];
    const AttentionShape& shape = layer.plan.shape;
    const Heads heads(shape.query_heads, shape.kv_heads, layer.plan.mesh.ulysses, 1);
    std::vector<std::string> row = {std::string(mixer_name(kind.kind)) +
                                        (kind.window ? " " + format_tokens(*kind.window) : "") +
                                        (layer.plan.prune && layer.plan.mesh.ring() > 1 ? ", pruned" : ""),
                                    layer_count_text(kind),
                                    fmt::format("{}/{}", shape.query_heads, shape.kv_heads),
                                    fmt::format("{}/{}", heads.query_of(0).size(), heads.kv_of(0).size()),
                                    format_seconds(layer.price.forward.seconds),
                                    format_seconds(layer.price.forward.exposed_s)};
    if (request.workload.training) {
      row.push_back(format_seconds(layer.price.backward.seconds));
      row.push_back(format_seconds(layer.price.backward.exposed_s));
    }
    row.push_back(format_bytes(layer.price.forward.wire_bytes));
    table.row(row);
  }
  return best.attention.empty() ? "" : "\none attention call (per layer and microbatch)\n" + table.str(2);
}

std::string time_table(const PlanResult& result) {
  const PlanCandidate& best = result.best();
  TextTable table;
  table.column("time of a step");
  table.column(time_header("time", result.calibration.calibrated), Align::right);
  for (const char* name : {"share", "band"}) table.column(name, Align::right);
  table.column("how");
  std::vector<const TimeTerm*> terms;
  for (const TimeTerm& term : best.terms) terms.push_back(&term);
  std::stable_sort(terms.begin(), terms.end(),
                   [](const TimeTerm* a, const TimeTerm* b) { return a->seconds > b->seconds; });
  for (const TimeTerm* term : terms)
    table.row({term->name, format_seconds(term->seconds), format_percent(term->seconds / best.step_s),
               "+-" + format_percent(term->band, 0), term->reason});
  table.rule();
  table.row({"sum", format_seconds(best.step_s), "100.0%", "+-" + format_percent(best.band, 0), ""});
  return "\n" + table.str();
}

std::string memory_table(const PlanRequest& request, const PlanCandidate& best) {
  TextTable table;
  table.column("memory of a device");
  table.column("GiB", Align::right);
  table.column("how");
  for (const MemoryRow& row : best.memory.rows)
    if (row.bytes > 0) table.row({row.name, gib(row.bytes), row.reason});
  table.rule();
  const double capacity = device_bytes(request);
  const i64 left = static_cast<i64>(capacity) - best.memory.total_bytes;
  table.row({"sum", gib(best.memory.total_bytes),
             fmt::format("{} GiB of {} stay free", gib(left), gib(static_cast<i64>(capacity)))});
  std::string text = "\n" + table.str();
  for (const MemoryRow& row : best.memory.host_rows)
    if (row.bytes > 0)
      text += fmt::format("  host memory: {}, {} GiB ({})\n", row.name, gib(row.bytes), row.reason);
  return text;
}

/// The term on which a candidate loses most against the best, per token.
std::string loses_on(const PlanCandidate& best, const PlanCandidate& other) {
  const auto per_token = [](const PlanCandidate& c, double seconds) {
    return c.step_s > 0 ? seconds * c.seconds_per_token / c.step_s : 0;
  };
  std::map<std::string, double> difference;
  for (const TimeTerm& term : other.terms) difference[term.name] += per_token(other, term.seconds);
  for (const TimeTerm& term : best.terms) difference[term.name] -= per_token(best, term.seconds);
  const auto most = std::max_element(difference.begin(), difference.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == difference.end() || most->second <= 0 || best.seconds_per_token <= 0) return "";
  return fmt::format("{} +{}", most->first, format_percent(most->second / best.seconds_per_token));
}

/// "+2.0%"; the simplest leads among equals, so that another may be faster by a little.
std::string slower_text(const PlanCandidate& c, const PlanCandidate& best) {
  const double slower = c.seconds_per_token / best.seconds_per_token - 1;
  return (slower < 0 ? "" : "+") + format_percent(slower);
}

/// What of a choice differs from the best one.
std::string differs(const Choice& best, const Choice& c) {
  const std::vector<std::string> words = split(describe(best), ',');
  std::vector<std::string> parts;
  for (const std::string& word : split(describe(c), ','))
    if (std::find(words.begin(), words.end(), word) == words.end()) parts.push_back(trim(word));
  return parts.empty() ? describe(c) : join(parts, ", ");
}

std::string runners(const PlanResult& result) {
  const PlanCandidate& best = result.best();
  TextTable table;
  table.column("runners-up: difference");
  table.column(time_header("per token", result.calibration.calibrated), Align::right);
  table.column("GiB", Align::right);
  table.column("loses most on");
  std::size_t shown = 0;
  for (std::size_t i = 1; i < result.candidates.size() && shown < max_runners; ++i) {
    const PlanCandidate& c = result.candidates[i];
    if (!c.fits || (best.executable() && !c.executable())) continue;
    ++shown;
    table.row(
        {differs(best.choice, c.choice), slower_text(c, best), gib(c.memory.total_bytes), loses_on(best, c)});
  }
  return shown == 0 ? "" : "\n" + table.str();
}

std::string verdict_line(const PlanResult& result) {
  const Verdict& v = result.verdict;
  if (v.runner_up.empty()) return fmt::format("\n{}\n", v.alone);
  if (v.tie && v.margin == 0)
    return fmt::format("\na tie: {} is priced as fast; of equals the one with the shortest ring leads\n",
                       v.runner_up);
  if (v.tie)
    return fmt::format("\na tie: {} is {} slower, less than the error of the terms that differ\n",
                       v.runner_up, format_percent(v.margin));
  return fmt::format("\nmargin {} over the next mesh, {}\n", format_percent(v.margin), v.runner_up);
}

std::string verdict_text(const PlanResult& result) {
  const Verdict& v = result.verdict;
  if (v.runner_up.empty()) return verdict_line(result);
  return verdict_line(result) + guesses_text(v.guesses) +
         list_text("to settle it, measure first", v.tie_breaking_measurements) +
         list_text("the choice is sensitive to", v.sensitive_terms);
}

std::string flag_costs_text(const std::vector<FlagCost>& costs) {
  std::vector<std::string> lines;
  for (const FlagCost& cost : costs)
    lines.push_back(fmt::format("your {} {} {}: without it {}", cost.flag,
                                cost.slowdown < 0 ? "gains" : "costs",
                                format_percent(std::abs(cost.slowdown)), cost.without));
  return list_text("what fixed choices cost", lines);
}

/// Terms that a measurement is explained by.
constexpr std::size_t max_factors = 4;

std::string measured_text(const PlanRequest& request, const PlanCandidate& best) {
  if (!request.measured_step_s) return "";
  const MeasuredStep m = measured_step(best, *request.measured_step_s);
  const auto devices = static_cast<double>(request.cluster->devices.size());
  std::string text = fmt::format(
      "\nmeasured {}: {} times the prediction, {} its band\n  rate      {} tokens/s, {} per device\n  MFU    "
      "   {} "
      "({} per device)\n",
      format_seconds(m.seconds), format_fixed(m.ratio, 2), m.in_band ? "within" : "outside",
      rate_text(m.tokens_s), rate_text(m.tokens_s / devices), format_percent(m.mfu),
      format_flop_rate(m.flop_s));
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < std::min(max_factors, m.terms.size()); ++i)
    lines.push_back(fmt::format("{} x {}", m.terms[i].name, format_fixed(m.terms[i].factor, 2)));
  return text + list_text("one of these alone would explain it", lines);
}

std::string pareto_text(const PlanResult& result) {
  if (result.pareto.size() < 2) return "";
  const PlanCandidate& best = result.best();
  TextTable table;
  table.column("time against memory");
  table.column(time_header("per token", result.calibration.calibrated), Align::right);
  table.column("GiB", Align::right);
  for (const std::size_t i : result.pareto) {
    const PlanCandidate& c = result.candidates[i];
    table.row({i == 0 ? "the plan above" : differs(best.choice, c.choice), slower_text(c, best),
               gib(c.memory.total_bytes)});
  }
  return "\n" + table.str();
}

}  // namespace

std::string plan_text(const PlanRequest& request, const PlanResult& result, bool brief) {
  if (brief)
    return job_text(request) + headline(request, result) + verdict_line(result) +
           flag_costs_text(result.verdict.flag_costs) + list_text("notes", result.notes);
  const PlanCandidate& best = result.best();
  const std::vector<AxisView> axes =
      axes_of_step(*request.cluster, best.choice.mesh, best.choice.placement,
                   pipeline_of(request, best.choice), request.execution.transport, request.workload.training);
  // How the axes lie; the groups of gradients are among those to launch.
  std::vector<AxisView> mesh_axes = axes;
  if (!mesh_axes.empty() && mesh_axes.back().name == "gradients") mesh_axes.pop_back();
  std::string text =
      job_text(request) + headline(request, result) + measured_text(request, best) + where_text(mesh_axes);
  text += layers_text(request, best) + time_table(result) + memory_table(request, best);
  text += runners(result) + verdict_text(result) + flag_costs_text(result.verdict.flag_costs);
  text += pareto_text(result) + rejected_text(result.rejected);
  text += groups_text(axes);
  text += list_text("notes", result.notes);
  return fmt::format("{}\n{}{} priced\n", text, summary_text(result.calibration),
                     counted(result.considered, "attention schedule"));
}

std::string describe(const Choice& c) {
  const Mesh& m = c.mesh;
  std::string text = fmt::format("ring {} x ulysses {}", m.ring(), m.ulysses);
  if (c.tensor() > 1) text += fmt::format(", tensor {}", c.tensor());
  if (c.data() > 1) text += fmt::format(", data {}", c.data());
  text += fmt::format(", {}", word_of(c.layout));
  if (m.ring() > 1) {
    text += fmt::format(", {}", word_of(c.method));
    if (c.method->two_level_ring) text += fmt::format(" {}x{}", m.ring_outer, m.ring_inner);
    if (m.ulysses > 1) text += fmt::format(", {}", word_of(c.placement.order));
    if (c.dkv_return != DkvReturn::circulate) text += fmt::format(", dkv {}", word_of(c.dkv_return));
    text += gated_text(c.gated, c.gate_phases);
  }
  if (c.head_chunks > 1) text += fmt::format(", {} head chunks", c.head_chunks);
  if (c.uneven_heads) text += ", uneven heads";
  if (c.latent_kv) text += ", latents on the ring";
  std::string recompute(word_of(c.recompute));
  std::string host;
  if (c.offload.any())
    host = "offload " + (c.offload == kept_by(c.recompute) && !layer_again(c.recompute)
                             ? std::string("all that is kept")
                             : kinds_text(c.offload, " and "));
  if (c.split) {
    const StepSplit& s = *c.split;
    if (s.pipeline > 1) text += fmt::format(", pipeline {}", s.pipeline);
    if (s.virtual_stages > 1) text += fmt::format(" x {} chunks", s.virtual_stages);
    if (s.expert > 1) text += fmt::format(", expert {}", s.expert);
    if (s.microbatches > 1) text += fmt::format(", {} microbatches", s.microbatches);
    if (s.mlp_tile_tokens > 0) text += fmt::format(", MLP tiles of {}", counted(s.mlp_tile_tokens, "token"));
    if (s.recompute_layers) recompute += fmt::format(" of {}", counted(*s.recompute_layers, "layer"));
    if (s.offload_layers)
      (host.empty() ? recompute : host) += fmt::format(" of {}", counted(*s.offload_layers, "layer"));
  }
  if (!host.empty()) recompute += ", " + host;
  return fmt::format("{}, recompute {}, ZeRO-{}", text, recompute, c.zero_stage);
}

}  // namespace usp
