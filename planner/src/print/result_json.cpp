// SPDX-License-Identifier: Apache-2.0
#include "plan_inputs_json.hpp"
#include "print_parts.hpp"
#include "request_json.hpp"
#include "steps_json.hpp"

#include "usp/base/json_format.hpp"
#include "usp/planner/plan_print.hpp"
#include "usp/planner/report.hpp"

#include <cmath>

namespace usp {
namespace {

/// A count kept as double: an integer, where 64 bits hold it.
Json count_json(double count) {
  constexpr double limit = 9.2e18;
  return count < limit ? Json(static_cast<i64>(std::ceil(count))) : Json(count);
}

Json rejected_json(const std::vector<Rejection>& rejected) {
  Json list = Json::array();
  for (const Rejection& r : rejected)
    list.push_back({{"mesh", {{"ring", r.ring}, {"ulysses", r.ulysses}}},
                    {"data", r.data},
                    {"tensor", r.tensor},
                    {"reason", r.reason}});
  return list;
}

Json axes_json(const std::vector<AxisView>& axes) {
  Json list = Json::array();
  for (const AxisView& axis : axes)
    list.push_back({{"axis", axis.name},
                    {"degree", axis.degree},
                    {"hosts", axis.hosts},
                    {"spans_hosts", axis.spans_hosts},
                    {"transport", word_of(axis.transport)},
                    {"links", axis.where},
                    {"groups", axis.groups}});
  return list;
}

Json rows_json(const std::vector<MemoryRow>& rows) {
  Json list = Json::array();
  for (const MemoryRow& row : rows)
    list.push_back({{"name", row.name}, {"bytes", row.bytes}, {"reason", row.reason}});
  return list;
}

Json pass_json(const PassPrice& pass) {
  return {{"time_s", pass.seconds},
          {"compute_s", pass.compute_s},
          {"exposed_s", pass.exposed_s},
          {"band", pass.band},
          {"max_rank_bytes", count_json(pass.wire_bytes)},
          {"overlapped", pass.overlapped}};
}

Json split_json(const PlanRequest& request, const Choice& choice) {
  const Workload w = workload_of(request, choice);
  return {{"batch", w.batch},
          {"microbatches", w.microbatches},
          {"pipeline", w.pipeline},
          {"virtual_stages", w.virtual_stages},
          {"expert", w.expert},
          {"recompute_layers", json_or_null(w.recompute_layers)},
          {"offload_layers", json_or_null(w.offload_layers)},
          {"mlp_tile_tokens", choice.split ? choice.split->mlp_tile_tokens : 0}};
}

Json flag_costs_json(const std::vector<FlagCost>& costs) {
  Json list = Json::array();
  for (const FlagCost& cost : costs)
    list.push_back({{"flag", cost.flag}, {"slowdown", cost.slowdown}, {"without", cost.without}});
  return list;
}

/// A measured step beside the predicted one.
Json measured_json(const PlanRequest& request, const PlanCandidate& c) {
  if (!request.measured_step_s) return nullptr;
  const MeasuredStep m = measured_step(c, *request.measured_step_s);
  Json terms = Json::array();
  for (const TermFactor& term : m.terms) terms.push_back({{"name", term.name}, {"factor", term.factor}});
  return {{"time_s", m.seconds},
          {"ratio", m.ratio},
          {"in_band", m.in_band},
          {"tokens_per_s", m.tokens_s},
          {"flop_per_s_per_device", m.flop_s},
          {"mfu", m.mfu},
          {"explained_alone_by", terms}};
}

/// What every candidate has.
Json brief_json(const PlanRequest& request, const PlanCandidate& c) {
  const Choice& choice = c.choice;
  Json json = {{"mesh", mesh_json(choice.mesh)},
               {"data", choice.data()},
               {"tensor", choice.tensor()},
               {"layout", word_of(choice.layout)},
               {"method", word_of(choice.method)},
               {"dkv_return", word_of(choice.dkv_return)},
               {"head_chunks", choice.head_chunks},
               {"order", word_of(choice.placement.order)},
               {"recompute", word_of(choice.recompute)},
               {"zero_stage", choice.zero_stage},
               {"uneven_heads", choice.uneven_heads},
               {"gated", choice.gated},
               {"offload", offload_json(offloaded(choice.recompute, choice.offload))},
               {"executable", c.executable()},
               {"unexecutable_reason", c.executable() ? Json(nullptr) : Json(c.unexecutable_reason)},
               {"split", split_json(request, choice)},
               {"fits_memory", c.fits},
               {"time_s", c.step_s},
               {"band", c.band},
               {"tokens_per_s", c.seconds_per_token > 0 ? 1 / c.seconds_per_token : 0},
               {"model_flops", c.model_flops},
               {"flop_per_s_per_device", c.flop_s},
               {"mfu", c.mfu},
               {"memory_bytes", c.memory.total_bytes},
               {"description", describe(choice)}};
  if (choice.gated) json["gate_phases"] = choice.gate_phases;
  return json;
}

Json best_json(const PlanRequest& request, const PlanCandidate& c) {
  Json json = brief_json(request, c);
  const Choice& choice = c.choice;
  json["placement"] = world_devices(choice.mesh, choice.placement, pipeline_of(request, choice));
  json["axes"] =
      axes_json(axes_of_step(*request.cluster, choice.mesh, choice.placement, pipeline_of(request, choice),
                             request.execution.transport, request.workload.training));
  json["terms"] = Json::array();
  for (const TimeTerm& term : c.terms)
    json["terms"].push_back(
        {{"name", term.name}, {"time_s", term.seconds}, {"band", term.band}, {"reason", term.reason}});
  json["memory"] = {{"rows", rows_json(c.memory.rows)},
                    {"total_bytes", c.memory.total_bytes},
                    {"host_rows", rows_json(c.memory.host_rows)},
                    {"host_total_bytes", c.memory.host_total_bytes},
                    {"stage", c.memory.stage}};
  json["attention"] = Json::array();
  for (const LayerAttention& layer : c.attention) {
    const LayerKind& kind = request.model->kinds[layer.kind];
    json["attention"].push_back(
        {{"kind", mixer_name(kind.kind)},
         {"layers", kind.layers.size()},
         {"per_layer", kind.per_layer},
         {"forward", pass_json(layer.price.forward)},
         {"backward", request.workload.training ? pass_json(layer.price.backward) : Json(nullptr)}});
  }
  return json;
}

std::string dumped(const Json& json) {
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json guesses_json(const std::vector<GuessedInput>& guesses) {
  Json list = Json::array();
  for (const GuessedInput& guess : guesses)
    list.push_back({{"input", guess.input},
                    {"provenance", guess.provenance},
                    {"factor", guess.factor},
                    {"first", guess.first},
                    {"measurement", guess.measurement}});
  return list;
}

Json candidate_json(const AttentionCandidate& c, bool training) {
  const AttentionPlan& plan = c.plan;
  Json json = {{"mesh", mesh_json(plan.mesh)},
               {"data", c.placement.data},
               {"tensor", c.placement.tensor},
               {"layout", word_of(plan.layout)},
               {"method", word_of(plan.method)},
               {"dkv_return", word_of(plan.dkv_return)},
               {"head_chunks", plan.head_chunks},
               {"order", word_of(c.placement.order)},
               {"backend", word_of(plan.backend)},
               {"uneven_heads", c.uneven_heads},
               {"gated", plan.gated},
               {"time_s", c.seconds()},
               {"band", c.band()},
               {"forward", pass_json(c.price.forward)},
               {"backward", training ? pass_json(c.price.backward) : Json(nullptr)},
               {"memory_bytes", count_json(c.live_bytes)},
               {"description", describe(c)}};
  if (plan.gated) json["gate_phases"] = plan.gate_phases;
  return json;
}

}  // namespace

namespace {

Json backend_json(const BackendPrice& b, double best_s) {
  const bool priced = b.seconds > 0;
  return {{"backend", word_of(b.backend)},
          {"time_s", priced ? Json(b.seconds) : Json(nullptr)},
          {"band", priced ? Json(b.band) : Json(nullptr)},
          {"slower", priced ? Json(b.seconds / best_s - 1) : Json(nullptr)},
          {"tie", b.tie},
          {"description", priced ? Json(b.description) : Json(nullptr)},
          {"objection", b.objection.empty() ? Json(nullptr) : Json(b.objection)}};
}

}  // namespace

std::string plan_result_json(const PlanRequest& request, const PlanResult& result) {
  const Verdict& v = result.verdict;
  Json json = json_header("usp.plan_result");
  json["request"] = request_json(request);
  json["best"] = best_json(request, result.best());
  json["candidates"] = Json::array();
  json["ranked_by"] = "tokens_per_s";
  for (const PlanCandidate& c : result.candidates) json["candidates"].push_back(brief_json(request, c));
  json["pareto"] = result.pareto;
  json["rejected"] = rejected_json(result.rejected);
  json["verdict"] = {{"margin", v.margin},
                     {"tie", v.tie},
                     {"runner_up", v.runner_up.empty() ? Json(nullptr) : Json(v.runner_up)},
                     {"tie_breaking_measurements", v.tie_breaking_measurements},
                     {"guesses", guesses_json(v.guesses)},
                     {"sensitive_terms", v.sensitive_terms},
                     {"flag_costs", flag_costs_json(v.flag_costs)}};
  json["measured"] = measured_json(request, result.best());
  json["calibration"] = Json::parse(summary_json(result.calibration));
  json["priced_schedules"] = result.considered;
  json["notes"] = result.notes;
  return dumped(json);
}

std::string attention_result_json(const AttentionRequest& request, const AttentionResult& result) {
  const AttentionCandidate& best = result.best();
  Json first = candidate_json(best, request.training);
  first["placement"] = world_devices(best.plan.mesh, best.placement);
  first["axes"] =
      axes_json(axes_of(*request.cluster, best.plan.mesh, best.placement, 1, request.execution.transport));
  Json json = json_header("usp.attention_plan_result");
  json["request"] = request_json(request);
  json["best"] = std::move(first);
  json["best_forward"] = candidate_json(result.best_forward, request.training);
  json["best_backward"] =
      request.training ? candidate_json(result.best_backward, request.training) : Json(nullptr);
  json["candidates"] = Json::array();
  for (const AttentionCandidate& c : result.candidates)
    json["candidates"].push_back(candidate_json(c, request.training));
  json["backends"] = Json::array();
  for (const BackendPrice& b : result.backends) json["backends"].push_back(backend_json(b, best.seconds()));
  json["backend_steps"] = {{"forward", steps_json(result.forward_steps)},
                           {"backward", steps_json(result.backward_steps)}};
  json["rejected"] = rejected_json(result.rejected);
  json["verdict"] = {{"margin", result.margin},
                     {"tie", result.tie},
                     {"tie_breaking_measurements", result.tie_breaking_measurements},
                     {"guesses", guesses_json(result.guesses)}};
  json["smaller"] = Json::array();
  for (const AttentionCandidate& c : result.smaller)
    json["smaller"].push_back({{"devices", c.plan.mesh.size()},
                               {"time_s", c.seconds()},
                               {"band", c.band()},
                               {"description", describe(c)}});
  json["calibration"] = Json::parse(summary_json(result.calibration));
  json["priced_schedules"] = result.considered;
  json["notes"] = result.notes;
  return dumped(json);
}

std::string report_json(const PlanRequest& request, const std::string& file) {
  Json json = json_header("usp.report");
  json["request"] = request_json(request);
  json["file"] = file;
  return dumped(json);
}

}  // namespace usp
