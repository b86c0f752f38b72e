// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/make_plan.hpp"

#include "usp/base/digest.hpp"
#include "usp/base/error.hpp"
#include "usp/planner/cluster_summary.hpp"
#include "usp/planner/detail/axes.hpp"
#include "usp/planner/detail/card_backends.hpp"
#include "usp/planner/model_config.hpp"
#include "usp/schedule/effort.hpp"
#include "usp/schedule/limits.hpp"
#include "usp/schedule/validate.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp {
namespace {

/// Ranks whose explicit schedules are packed one by one; beyond, the bound of the compact form is named.
constexpr int max_expanded_ranks = 64;
/// Documents beyond which expanding every rank costs more than the plan.
constexpr std::size_t max_expanded_documents = 512;

/// What only the explicit schedules say.
void expand_all(const schedule::TokenMap& geometry, const schedule::CompactSchedule& compact, Pass pass,
                PassPrediction& prediction) {
  const AttentionPlan& plan = geometry.plan();
  prediction.workspace_bytes = 0;
  prediction.steps.emplace();
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    const schedule::RankSchedule schedule = schedule::expand(geometry, compact, rank, pass);
    const i64 bytes = schedule::pack_workspace(schedule, plan.shape.batch).bytes;
    prediction.workspace_bytes = std::max(prediction.workspace_bytes, bytes);
    schedule::add_steps(*prediction.steps, schedule);
  }
}

/// Whether every rank is expanded for what only that says.
bool expands_all(const AttentionPlan& plan, const Documents& documents) {
  const int ranks = plan.mesh.size();
  return ranks <= max_expanded_ranks && documents.count() <= max_expanded_documents &&
         too_much_to_expand(expansion_effort(plan, documents.count(), ranks), plan).empty();
}

Transport transport_of(const std::vector<AxisView>& axes, const std::string& name, Transport standard) {
  for (const AxisView& axis : axes)
    if (axis.name == name) return axis.transport;
  return standard;
}

StepWorkload step_workload(const Workload& workload, const MemoryPolicy& memory) {
  StepWorkload step;
  step.batch = workload.batch;
  step.microbatches = workload.microbatches;
  step.expert = workload.expert;
  step.dtype = workload.dtype;
  step.causal = workload.causal;
  step.optimizer = workload.optimizer;
  step.fp32_gradients = workload.fp32_gradients;
  step.virtual_stages = workload.virtual_stages;
  step.expert_tensor = workload.expert_tensor;
  step.sequence_parallel = workload.sequence_parallel;
  step.recompute_layers = workload.recompute_layers;
  step.offload = workload.offload;
  step.offload_layers = workload.offload_layers;
  step.memory = memory;
  return step;
}

}  // namespace

void predict_bytes(PlanLayer& layer, const Documents& documents, bool training, WorkspaceBasis& basis) {
  if (const std::string reason = too_much_work(effort_of(layer.plan, documents.count(), 0), layer.plan);
      !reason.empty())
    throw Infeasible(reason, {});
  const schedule::TokenMap geometry(layer.plan, documents);
  schedule::CompactSchedule compact;
  schedule::generate(layer.plan, geometry.heads().shared_kv(), compact);
  const bool all = expands_all(layer.plan, documents);
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    if (pass == Pass::backward && !training) continue;
    PassPrediction& prediction = pass == Pass::forward ? layer.forward : layer.backward;
    const Ledger bytes = ledger(geometry, compact.of(pass));
    prediction.sent_bytes = *std::max_element(bytes.sent.begin(), bytes.sent.end());
    prediction.received_bytes = *std::max_element(bytes.received.begin(), bytes.received.end());
    if (all)
      expand_all(geometry, compact, pass, prediction);
    else
      basis = WorkspaceBasis::bound;
  }
}

void check_predictions(const PlanFile& plan, const std::string& file) {
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    PlanLayer derived = plan.layers[i];
    WorkspaceBasis basis = WorkspaceBasis::exact;
    derived.forward.steps.reset();
    derived.backward.steps.reset();
    predict_bytes(derived, layer_documents(derived, plan.documents, plan.kv_documents), plan.training, basis);
    const auto same = [&](const char* pass, const char* key, bool equal) {
      if (!equal)
        throw InvalidInput({file, 0, fmt::format("/layers/{}/prediction/{}/{}", i, pass, key)},
                           "is not what follows from the recipe; write the plan anew with usp plan -o");
    };
    const auto compare = [&](const char* pass, const PassPrediction& stated, const PassPrediction& found) {
      same(pass, "sent_bytes", stated.sent_bytes == found.sent_bytes);
      same(pass, "received_bytes", stated.received_bytes == found.received_bytes);
      same(pass, "workspace_bytes", stated.workspace_bytes == found.workspace_bytes);
      same(pass, "steps", stated.steps == found.steps);
    };
    compare("forward", plan.layers[i].forward, derived.forward);
    compare("backward", plan.layers[i].backward, derived.backward);
  }
}

namespace {

void require_executable(const LayerKind& kind, const Model& model) {
  if (kind.kind != LayerMixer::sparse && kind.kind != LayerMixer::cross) return;
  throw InvalidInput(
      {model.name, 0, ""},
      fmt::format("a plan file holds schedules that the runtime executes, and it has none for {} layers; "
                  "plan without writing a file",
                  kind.kind == LayerMixer::sparse ? "sparse-index" : "cross-attention"));
}

void require_executable(const Choice& choice, const Model& model) {
  if (choice.latent_kv)
    throw InvalidInput(
        {model.name, 0, ""},
        "a plan file holds schedules that the runtime executes, and it has none for rings that ship "
        "latents; plan without --latent-kv, or without writing a file");
}

PlanInputs inputs_of(const PlanRequest& request, const Choice& choice, const Workload& split) {
  MemoryPolicy memory = request.memory;
  if (choice.split && choice.split->mlp_tile_tokens > 0)
    memory.mlp_tile_tokens = choice.split->mlp_tile_tokens;
  StepWorkload step = step_workload(split, memory);
  step.expert_overlap = request.expert_overlap;
  if (request.model->attention_layers() < request.model->layers) step.model_layers = request.model->layers;
  return {request.fixed, request.execution, true, step};
}

}  // namespace

PlanFile make_plan_file(const PlanRequest& request, const PlanCandidate& candidate) {
  const Choice& choice = candidate.choice;
  require_executable(choice, *request.model);
  const Workload& workload = request.workload;
  PlanFile file;
  file.model = request.model->name;
  file.cluster = request.cluster->name;
  file.training = workload.training;
  file.mesh = choice.mesh;
  file.placement = choice.placement;
  const Workload split = workload_of(request, choice);
  file.pipeline = split.pipeline;
  file.recompute = choice.recompute;
  file.zero_stage = choice.zero_stage;
  file.capacity_tokens = workload.seq;
  file.capacity_documents = std::max<i64>(1, static_cast<i64>(workload.documents.size()));
  file.documents = workload.documents;
  const std::vector<AxisView> axes =
      axes_of(*request.cluster, choice.mesh, choice.placement, split.pipeline, request.execution.transport);
  file.ulysses_transport = transport_of(axes, "ulysses", request.execution.transport);
  file.ring_transport = transport_of(axes, "ring", request.execution.transport);
  file.overlap = request.execution.overlap;
  file.inputs = inputs_of(request, choice, split);
  file.step_s = candidate.step_s;
  file.step_band = candidate.band;
  file.memory_bytes = candidate.memory.total_bytes;
  file.host_memory_bytes = candidate.memory.host_total_bytes;
  file.calibration = request.calibration->calibrated ? request.calibration->name : "uncalibrated";
  file.model_digest = model_digest(*request.model);
  file.workload_digest = workload_digest(workload);
  file.cluster_digest = cluster_digest(*request.cluster);
  LinkPricer links(*request.cluster, *request.calibration);
  const CardBackends backends(*request.cluster, *request.calibration);
  for (const LayerAttention& attention : candidate.attention) {
    const LayerKind& kind = request.model->kinds[attention.kind];
    require_executable(kind, *request.model);
    PlanLayer layer;
    layer.kind = mixer_name(kind.kind);
    layer.layers = kind.layers;
    layer.per_layer = kind.per_layer;
    layer.plan = attention.plan;
    layer.plan.backend = backends.of_layer(attention.plan, workload.training);
    if (kind.kind == LayerMixer::chunked) layer.chunk_tokens = kind.window.value_or(0);
    layer.forward = {attention.price.forward.seconds, attention.price.forward.band};
    if (workload.training) layer.backward = {attention.price.backward.seconds, attention.price.backward.band};
    const Documents documents = attention_documents(workload, kind);
    predict_bytes(layer, documents, workload.training, file.workspace);
    file.layers.push_back(std::move(layer));
  }
  if (file.workspace == WorkspaceBasis::bound)
    for (PlanLayer& layer : file.layers) {
      AttentionPricer pricer(links, layer.plan.shape,
                             layer_documents(layer, file.documents, file.kv_documents), request.execution);
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        if (pass == Pass::backward && !workload.training) continue;
        (pass == Pass::forward ? layer.forward : layer.backward).workspace_bytes =
            static_cast<i64>(pricer.live_bytes(layer.plan, pass).total);
      }
    }
  return file;
}

std::string model_digest(const Model& model) {
  return Digest().bytes(model_json(model)).hex();
}

std::string workload_digest(const Workload& w) {
  Digest digest;
  digest.add(w.seq).add(w.batch).add(w.dtype).add(w.causal).add(w.training).add(w.optimizer);
  digest.add(w.fp32_gradients).add(w.microbatches).add(w.pipeline).add(w.expert);
  digest.add(w.documents.size());
  for (const i64 length : w.documents) digest.add(length);
  return digest.hex();
}

}  // namespace usp
