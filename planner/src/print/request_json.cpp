// SPDX-License-Identifier: Apache-2.0
#include "request_json.hpp"

#include "plan_inputs_json.hpp"

namespace usp {
namespace {

template <class T>
Json list_or_null(const std::vector<T>& list) {
  return list.empty() ? Json(nullptr) : Json(list);
}

Json cluster_json(const ClusterSummary& cluster) {
  return {{"name", cluster.name},
          {"nodes", cluster.nodes},
          {"devices", cluster.devices},
          {"digest", cluster.digest}};
}

/// Recompute and zero_stage are constraints: the planner chooses what `fixed` leaves free.
Json workload_json(const Workload& workload) {
  return {{"seq", workload.seq},
          {"batch", workload.batch},
          {"dtype", word_of(workload.dtype)},
          {"causal", workload.causal},
          {"documents", list_or_null(workload.documents)},
          {"training", workload.training},
          {"optimizer", word_of(workload.optimizer)},
          {"fp32_gradients", workload.fp32_gradients},
          {"microbatches", workload.microbatches},
          {"pipeline", workload.pipeline},
          {"virtual_stages", workload.virtual_stages},
          {"sequence_parallel", workload.sequence_parallel},
          {"expert_tensor", workload.expert_tensor},
          {"expert_load", workload.expert_load},
          {"recompute_layers", json_or_null(workload.recompute_layers)},
          {"offload_layers", json_or_null(workload.offload_layers)},
          {"expert", workload.expert}};
}

Json execution_json(const ExecutionOptions& execution) {
  return {{"transport", word_of(execution.transport)},
          {"packed", execution.packed},
          {"pack_kernels", execution.pack_kernels},
          {"merge_kernels", execution.merge_kernels},
          {"overlap", execution.overlap}};
}

Json documents_json(const Documents& documents) {
  return {{"cu_q", documents.cu_q}, {"cu_k", documents.cu_k}, {"shift", documents.shift}};
}

Json attention_plan_json(const AttentionPlan& plan) {
  Json json = recipe_json(plan);
  json["mesh"] = mesh_json(plan.mesh);
  return json;
}

Json placement_json(const Placement& placement) {
  return {{"data", placement.data},
          {"tensor", placement.tensor},
          {"order", word_of(placement.order)},
          {"devices", list_or_null(placement.devices)}};
}

bool is_rate(AxisKind kind) {
  return kind == AxisKind::nic || kind == AxisKind::nvlink;
}

Json unit_json(const Axis& axis) {
  if (is_rate(axis.kind)) return "bytes_per_s";
  if (axis.kind == AxisKind::memory) return "bytes";
  return axis.unit.empty() ? Json(nullptr) : Json(axis.unit);
}

Json axes_json(const std::vector<Axis>& axes) {
  Json list = Json::array();
  for (const Axis& axis : axes) {
    Json values = Json::array();
    for (const AxisValue& value : axis.values) values.push_back(axis_value_json(axis.kind, value));
    list.push_back({{"name", axis.name}, {"unit", unit_json(axis)}, {"values", std::move(values)}});
  }
  return list;
}

}  // namespace

Json axis_value_json(AxisKind kind, const AxisValue& value) {
  return {{"number", is_rate(kind) ? value.number * 1e9 : value.number}, {"text", value.text}};
}

Json request_json(const PlanRequest& request) {
  return {{"model", request.model->name},
          {"cluster", cluster_json(cluster_summary(*request.cluster))},
          {"calibration", request.calibration->name},
          {"workload", workload_json(request.workload)},
          {"fixed", fixed_json(request.fixed)},
          {"memory", memory_json(request.memory)},
          {"execution", execution_json(request.execution)},
          {"objective", word_of(objective_of(request))},
          {"global_batch", json_or_null(request.global_batch)},
          {"search_expert", request.search_expert},
          {"search_pipeline", request.search_pipeline},
          {"expert_overlap", request.expert_overlap},
          {"latent_kv", request.latent_kv},
          {"gemm_efficiency", request.gemm_efficiency > 0 ? Json(request.gemm_efficiency) : Json(nullptr)},
          {"power_w", request.power_w > 0 ? Json(request.power_w) : Json(nullptr)},
          {"max_candidates", request.max_candidates}};
}

Json request_json(const WhatIfRequest& request) {
  return {{"base", request_json(request.base)},
          {"axes", axes_json(request.axes)},
          {"break_evens", request.break_evens}};
}

Json request_json(const AttentionRequest& request) {
  return {{"cluster", cluster_json(cluster_summary(*request.cluster))},
          {"calibration", request.calibration->name},
          {"shape", shape_json(request.shape)},
          {"documents", documents_json(request.documents)},
          {"band", band_json(request.band)},
          {"sink", request.sink},
          {"return_lse", request.return_lse},
          {"backend", request.backend ? Json(word_of(*request.backend)) : Json(nullptr)},
          {"score", score_rules_json(request.score)},
          {"replicated_q", ranges_json(request.replicated_q)},
          {"replicated_k", ranges_json(request.replicated_k)},
          {"training", request.training},
          {"fixed", fixed_json(request.fixed)},
          {"execution", execution_json(request.execution)},
          {"max_candidates", request.max_candidates},
          {"all_devices", request.all_devices}};
}

Json request_json(const PriceReport& report) {
  const AttentionCall& call = report.call;
  return {{"cluster", cluster_json(report.cluster)},
          {"calibration", report.calibration.name},
          {"plan", attention_plan_json(call.plan)},
          {"documents", documents_json(call.documents)},
          {"placement", placement_json(call.placement)},
          {"execution", execution_json(call.execution)},
          {"backward", call.backward}};
}

Json request_json(const ScoreReport& report) {
  return {{"csv", report.csv.empty() ? Json(nullptr) : Json(report.csv)},
          {"cluster", report.cluster ? cluster_json(*report.cluster) : Json(nullptr)},
          {"calibration", report.cluster ? Json(report.calibration.name) : Json(nullptr)},
          {"gate_tokens", report.gate_tokens}};
}

Json request_json(const ExplainRequest& request, const std::string& digest) {
  return {{"plan_digest", digest},
          {"layer", request.layer},
          {"rank", json_or_null(request.rank)},
          {"pass", word_of(request.pass)},
          {"documents", json_or_null(request.documents)}};
}

}  // namespace usp
