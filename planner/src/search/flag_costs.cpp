// SPDX-License-Identifier: Apache-2.0
#include "search_size.hpp"
#include "step_pricer.hpp"

#include "usp/base/error.hpp"
#include "usp/base/units.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp {
namespace {

/// Less is within the noise of any prediction.
constexpr double least_cost = 0.005;
/// Searches without a flag together take no longer than a fraction of what one command may.
constexpr double tick_share = 0.05;

struct Fixed {
  std::string flag;
  PlanRequest without;
};

std::vector<Fixed> fixed_choices(const PlanRequest& request) {
  std::vector<Fixed> list;
  const auto free = [&](const char* flag, auto Constraints::*member, const std::string& value) {
    if (!(request.fixed.*member)) return;
    list.push_back({fmt::format("{} {}", flag, value), request});
    (list.back().without.fixed.*member).reset();
  };
  const auto number = [](const std::optional<int>& value) { return value ? std::to_string(*value) : ""; };
  const auto word = [](const auto& value) { return value ? std::string(word_of(*value)) : ""; };
  const Constraints& fixed = request.fixed;
  free("--ring", &Constraints::ring, number(fixed.ring));
  free("--ulysses", &Constraints::ulysses, number(fixed.ulysses));
  free("--data", &Constraints::data, number(fixed.data));
  free("--tensor", &Constraints::tensor, number(fixed.tensor));
  free("--head-chunks", &Constraints::head_chunks, number(fixed.head_chunks));
  free("--zero", &Constraints::zero_stage, number(fixed.zero_stage));
  free("--method", &Constraints::method, word(fixed.method));
  free("--layout", &Constraints::layout, word(fixed.layout));
  free("--dkv-return", &Constraints::dkv_return, word(fixed.dkv_return));
  free("--order", &Constraints::order, word(fixed.order));
  free("--recompute", &Constraints::recompute, word(fixed.recompute));
  return list;
}

/// Degrees multiply to the devices: where all but one are fixed, freeing that one changes nothing.
PlanRequest with_room(PlanRequest request, const std::string& flag) {
  const bool degree =
      flag.rfind("--ring", 0) == 0 || flag.rfind("--ulysses", 0) == 0 || flag.rfind("--tensor", 0) == 0;
  if (degree) request.fixed.data.reset();
  request.max_candidates = 1;
  request.progress = nullptr;
  return request;
}

}  // namespace

std::vector<FlagCost> flag_costs(const PlanRequest& request, StepPricer& pricer, const PlanCandidate& best) {
  std::vector<FlagCost> costs;
  for (const Fixed& fixed : fixed_choices(request)) {
    const PlanRequest without = with_room(fixed.without, fixed.flag);
    const bool data_too = fixed.without.fixed.data && !without.fixed.data;
    const std::string flag =
        data_too ? fmt::format("{} with --data {}", fixed.flag, *request.fixed.data) : fixed.flag;
    if (search_ticks(without, pricer.world(), pricer.devices_per_node()) > tick_share * max_search_ticks)
      continue;
    try {
      const PlanResult other = search_with(without, pricer);
      const double slowdown = best.seconds_per_token / other.best().seconds_per_token - 1;
      if (slowdown > least_cost) costs.push_back({flag, slowdown, describe(other.best().choice)});
    } catch (const Error&) {
      continue;  // nothing is possible without it: it costs nothing
    }
  }
  std::stable_sort(costs.begin(), costs.end(),
                   [](const FlagCost& a, const FlagCost& b) { return a.slowdown > b.slowdown; });
  return costs;
}

namespace {

void note_kv_heads(const PlanRequest& request, const Choice& choice, std::vector<std::string>& notes) {
  i64 fewest = INT64_MAX;
  for (const LayerKind& kind : request.model->kinds)
    if (!kind.is_linear()) fewest = std::min(fewest, kind.kv_heads);
  const i64 ranks = i64{choice.tensor()} * choice.mesh.ulysses;
  if (fewest == INT64_MAX || fewest >= ranks) return;
  notes.push_back(fmt::format(
      "KV heads {} < tensor {} x ulysses {}: each is held by {} ranks, and its bytes travel as often", fewest,
      choice.tensor(), choice.mesh.ulysses, (ranks + fewest - 1) / fewest));
}

void note_host_memory(const PlanRequest& request, const PlanCandidate& best,
                      std::vector<std::string>& notes) {
  const topology::Cluster& cluster = *request.cluster;
  if (best.memory.host_total_bytes == 0 || cluster.nodes.front().host_memory_bytes.known()) return;
  const auto ranks =
      static_cast<double>(cluster.devices.size() / std::max<std::size_t>(1, cluster.nodes.size()));
  notes.push_back(fmt::format(
      "a host must hold {} for its {} ranks: the cluster does not say how much it has "
      "(host_memory_bytes), so that this is not checked",
      format_bytes(static_cast<double>(best.memory.host_total_bytes) * ranks), static_cast<i64>(ranks)));
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

}  // namespace

void add_notes(const PlanRequest& request, PlanResult& result) {
  const PlanCandidate& best = result.best();
  note_kv_heads(request, best.choice, result.notes);
  note_host_memory(request, best, result.notes);
  note_tiled_loss(request, best, result.notes);
  if (objective_of(request) == Objective::latency && !request.workload.training && best.choice.data() > 1)
    result.notes.push_back(fmt::format("{} replicas share the {} sequences of the batch", best.choice.data(),
                                       *global_batch_of(request)));
}

}  // namespace usp
