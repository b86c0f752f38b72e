// SPDX-License-Identifier: Apache-2.0
#include "step_pricer.hpp"

#include "usp/base/text.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/detail/card_backends.hpp"
#include "usp/planner/plan_attention.hpp"
#include "usp/topology/validate.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp {
namespace {

void note_kv_heads(const PlanRequest& request, const Choice& choice, std::vector<std::string>& notes) {
  i64 fewest = INT64_MAX;
  for (const LayerKind& kind : request.model->kinds)
    if (kind.has_softmax()) fewest = std::min(fewest, kind.kv_heads);
  const i64 ranks = i64{choice.tensor()} * choice.mesh.ulysses;
  if (fewest == INT64_MAX || fewest >= ranks) return;
  notes.push_back(fmt::format(
      "KV heads {} < tensor {} x ulysses {}: each is held by {} ranks, and its bytes travel as often", fewest,
      choice.tensor(), choice.mesh.ulysses, (ranks + fewest - 1) / fewest));
}

void note_host_memory(const PlanRequest& request, const PlanCandidate& best,
                      std::vector<std::string>& notes) {
  const topology::Cluster& cluster = *request.cluster;
  if (best.memory.host_total_bytes == 0 || cluster.nodes.front().host_memory_bytes.known() ||
      request.memory.host_bytes)
    return;
  const std::size_t ranks = cluster.devices.size() / std::max<std::size_t>(1, cluster.nodes.size());
  notes.push_back(fmt::format(
      "a host must hold {} for its {}: the cluster does not say how much it has (host_memory_bytes; "
      "--host-memory says it), so that this is not checked",
      format_bytes(static_cast<double>(best.memory.host_total_bytes) * static_cast<double>(ranks)),
      counted(ranks, "rank")));
}

void note_tiled_loss(const PlanRequest& request, const PlanCandidate& best, std::vector<std::string>& notes) {
  const Workload w = workload_of(request, best.choice);
  const i64 tokens =
      (w.seq + best.choice.mesh.size() - 1) / best.choice.mesh.size() * w.rows_per_microbatch();
  const i64 tile = request.memory.loss_tile_tokens;
  if (tile == 0 || tile >= tokens || !request.model->vocab) return;
  const i64 vocab = (*request.model->vocab + best.choice.tensor() - 1) / best.choice.tensor();
  notes.push_back(
      fmt::format("the loss is assumed tiled ({} tokens at a time, as chunked cross entropy does): untiled "
                  "logits take {}",
                  tile, format_bytes(static_cast<double>(logits_bytes(tokens, vocab, w).total()))));
}

/// Choices of the request that the best plan leaves nothing to act on.
void note_void_choices(const PlanRequest& request, const PlanCandidate& best,
                       std::vector<std::string>& notes) {
  const Workload w = workload_of(request, best.choice);
  if (request.expert_overlap && (w.expert == 1 || w.microbatches == 1))
    notes.push_back(fmt::format("--overlap-experts has no effect on this plan: {}",
                                w.expert == 1 ? "with one expert rank nothing is exchanged"
                                              : "one microbatch has no other to run beside"));
  if (request.model->moe && w.expert_load > 1 && w.expert == 1)
    notes.emplace_back("--expert-load has no effect on this plan: with one expert rank none is busier");
  if (best.choice.tensor() == 1 && (!w.sequence_parallel || !w.expert_tensor))
    notes.push_back(fmt::format("{} has no effect on this plan: it has one tensor rank",
                                w.sequence_parallel ? "--whole-experts" : "--no-sequence-parallel"));
  if (w.training && w.offload.any() && best.memory.host_total_bytes == 0)
    notes.push_back(fmt::format(
        "--offload {} moves nothing: this schedule keeps none of them by themselves (q, k and v that were "
        "exchanged wait with attention)",
        kinds_text(w.offload, ",")));
}

void note_scores(const PlanRequest& request, const PlanCandidate& best, std::vector<std::string>& notes) {
  const CardBackends cards(*request.cluster, *request.calibration);
  for (const LayerAttention& layer : best.attention) {
    const AttentionPlan& plan = layer.plan;
    if (!plan.backend->on_gpu) continue;
    const Backend computes = cards.computing(plan, Pass::forward, {0, plan.shape.query_heads});
    std::string note = scores_note(*request.calibration, plan, computes);
    if (note.empty()) continue;
    notes.push_back(std::move(note));
    return;
  }
}

void note_gates(const PlanRequest& request, const PlanCandidate& best, std::vector<std::string>& notes) {
  if (!best.choice.gated) return;
  Choice ungated = best.choice;
  ungated.gated = false, ungated.gate_phases = 1;
  notes.push_back(gates_note(best.seconds_per_token, price_choice(request, ungated).seconds_per_token));
  const CardBackends cards(*request.cluster, *request.calibration);
  for (const LayerAttention& layer : best.attention) {
    const AttentionPlan& plan = layer.plan;
    std::string note =
        stall_note(*request.calibration, cards.computing(plan, Pass::forward, {0, plan.shape.query_heads}));
    if (note.empty()) continue;
    notes.push_back(std::move(note));
    return;
  }
}

/// Why plan files of layers on cards name the host's backend.
void note_host_backend(const PlanRequest& request, const PlanCandidate& best,
                       std::vector<std::string>& notes) {
  if (request.library_kernels || topology::on_host_cores(*request.cluster)) return;
  const CardBackends cards(*request.cluster, *request.calibration);
  for (const LayerAttention& layer : best.attention) {
    const std::string why =
        layer.plan.backend->on_gpu ? "" : cards.all_objections(layer.plan, request.workload.training);
    if (why.empty()) continue;
    notes.push_back(fmt::format("layers have backend {}: no backend of GPUs takes them there ({})",
                                word_of(layer.plan.backend), why));
    return;
  }
}

}  // namespace

void add_notes(const PlanRequest& request, PlanResult& result) {
  const PlanCandidate& best = result.best();
  note_kv_heads(request, best.choice, result.notes);
  note_void_choices(request, best, result.notes);
  note_host_memory(request, best, result.notes);
  note_tiled_loss(request, best, result.notes);
  note_scores(request, best, result.notes);
  note_gates(request, best, result.notes);
  note_host_backend(request, best, result.notes);
  if (best.choice.split && best.choice.split->mlp_tile_tokens > 0)
    result.notes.push_back(
        fmt::format("the MLP is assumed tiled ({} tokens at a time, as ALST's tiled MLP does): "
                    "untiled the plan does not fit",
                    best.choice.split->mlp_tile_tokens));
  if (objective_of(request) == Objective::latency && !request.workload.training && best.choice.data() > 1)
    result.notes.push_back(fmt::format("{} replicas share the {} sequences of the batch", best.choice.data(),
                                       *global_batch_of(request)));
}

}  // namespace usp
