// SPDX-License-Identifier: Apache-2.0
#include "print_parts.hpp"
#include "steps_json.hpp"

#include "usp/base/json.hpp"
#include "usp/planner/plan_print.hpp"

namespace usp {
namespace {

constexpr double bytes_per_gib = 1073741824.0;

Json mesh_json(const Mesh& mesh) {
  return {{"ring", mesh.ring()},
          {"ulysses", mesh.ulysses},
          {"ring_outer", mesh.ring_outer},
          {"ring_inner", mesh.ring_inner}};
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
                    {"crosses_network", axis.spans_hosts},
                    {"transport", word_of(axis.transport)},
                    {"where", axis.where},
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
  return {{"time_ms", pass.seconds * 1e3},      {"compute_ms", pass.compute_s * 1e3},
          {"exposed_ms", pass.exposed_s * 1e3}, {"band", pass.band},
          {"wire_bytes", pass.wire_bytes},      {"overlapped", pass.overlapped}};
}

/// What every candidate has.
Json brief_json(const PlanCandidate& c) {
  const Choice& choice = c.choice;
  return {{"mesh", mesh_json(choice.mesh)},
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
          {"fits", c.fits},
          {"time_ms", c.step_s * 1e3},
          {"band", c.band},
          {"tokens_per_s", c.seconds_per_token > 0 ? 1 / c.seconds_per_token : 0},
          {"memory_gib", static_cast<double>(c.memory.total_bytes) / bytes_per_gib},
          {"description", describe(choice)}};
}

Json best_json(const PlanRequest& request, const PlanCandidate& c) {
  Json json = brief_json(c);
  const Choice& choice = c.choice;
  json["placement"] = world_devices(choice.mesh, choice.placement, request.workload.pipeline);
  json["axes"] = axes_json(axes_of(*request.cluster, choice.mesh, choice.placement, request.workload.pipeline,
                                   request.execution.transport));
  json["terms"] = Json::array();
  for (const TimeTerm& term : c.terms)
    json["terms"].push_back(
        {{"name", term.name}, {"time_ms", term.seconds * 1e3}, {"band", term.band}, {"reason", term.reason}});
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
         {"forward", pass_json(layer.price.forward)},
         {"backward", request.workload.training ? pass_json(layer.price.backward) : Json(nullptr)}});
  }
  return json;
}

std::string dumped(const Json& json) {
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json candidate_json(const AttentionCandidate& c, bool training) {
  const AttentionPlan& plan = c.plan;
  return {{"mesh", mesh_json(plan.mesh)},
          {"data", c.placement.data},
          {"tensor", c.placement.tensor},
          {"layout", word_of(plan.layout)},
          {"method", word_of(plan.method)},
          {"dkv_return", word_of(plan.dkv_return)},
          {"head_chunks", plan.head_chunks},
          {"order", word_of(c.placement.order)},
          {"uneven_heads", c.uneven_heads},
          {"time_ms", c.seconds() * 1e3},
          {"band", c.band()},
          {"forward", pass_json(c.price.forward)},
          {"backward", training ? pass_json(c.price.backward) : Json(nullptr)},
          {"memory_gib", c.live_bytes / bytes_per_gib},
          {"description", describe(c)}};
}

}  // namespace

std::string plan_result_json(const PlanRequest& request, const PlanResult& result) {
  const Verdict& v = result.verdict;
  Json json = {{"format", "usp.plan_result"},
               {"version", 1},
               {"model", request.model->name},
               {"cluster", request.cluster->name},
               {"best", best_json(request, result.best())},
               {"candidates", Json::array()}};
  json["ranked_by"] = "tokens_per_s";
  for (const PlanCandidate& c : result.candidates) json["candidates"].push_back(brief_json(c));
  json["pareto"] = result.pareto;
  json["rejected"] = rejected_json(result.rejected);
  json["verdict"] = {{"margin", v.margin},
                     {"tie", v.tie},
                     {"runner_up", v.runner_up.empty() ? Json(nullptr) : Json(v.runner_up)},
                     {"settle", v.tie_breaking_measurements},
                     {"sensitive_terms", v.sensitive_terms}};
  json["calibration"] = Json::parse(summary_json(result.calibration));
  json["considered"] = result.considered;
  json["notes"] = result.notes;
  return dumped(json);
}

std::string attention_result_json(const AttentionRequest& request, const AttentionResult& result) {
  const AttentionCandidate& best = result.best();
  Json first = candidate_json(best, request.training);
  first["placement"] = world_devices(best.plan.mesh, best.placement);
  first["axes"] =
      axes_json(axes_of(*request.cluster, best.plan.mesh, best.placement, 1, request.execution.transport));
  Json json = {{"format", "usp.attention_plan_result"},
               {"version", 1},
               {"cluster", request.cluster->name},
               {"best", std::move(first)},
               {"best_forward", candidate_json(result.best_forward, request.training)},
               {"best_backward",
                request.training ? candidate_json(result.best_backward, request.training) : Json(nullptr)},
               {"candidates", Json::array()}};
  for (const AttentionCandidate& c : result.candidates)
    json["candidates"].push_back(candidate_json(c, request.training));
  json["backend"] = {{"asked", word_of(best.plan.backend)},
                     {"forward", steps_json(result.forward_steps)},
                     {"backward", steps_json(result.backward_steps)}};
  json["rejected"] = rejected_json(result.rejected);
  json["verdict"] = {
      {"margin", result.margin}, {"tie", result.tie}, {"settle", result.tie_breaking_measurements}};
  json["calibration"] = Json::parse(summary_json(result.calibration));
  json["considered"] = result.considered;
  json["notes"] = result.notes;
  return dumped(json);
}

}  // namespace usp
