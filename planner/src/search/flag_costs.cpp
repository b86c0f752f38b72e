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

/// Devices up to which a pipeline is searched only to say what a fixed one costs.
constexpr i64 most_for_pipelines = 256;

struct Fixed {
  std::string flag;
  PlanRequest without;
  bool reprices = false;  ///< differs in more than what a choice holds: needs a pricer of its own
  bool always = false;    ///< said whatever it costs or gains
};

/// What flags beside Constraints decide.
void add_workload_choices(const PlanRequest& request, i64 world, std::vector<Fixed>& list) {
  const Workload& w = request.workload;
  const auto add = [&](std::string flag, bool reprices) -> PlanRequest& {
    list.push_back({std::move(flag), request, reprices});
    return list.back().without;
  };
  if (request.model->moe && !request.search_expert)
    add(fmt::format("--expert {}", w.expert), false).search_expert = true;
  if (request.model->moe && !w.expert_tensor) add("--whole-experts", true).workload.expert_tensor = true;
  if (!w.sequence_parallel) add("--no-sequence-parallel", true).workload.sequence_parallel = true;
  if (request.memory.mlp_tile_tokens > 0)
    add(fmt::format("--mlp-tile {}", request.memory.mlp_tile_tokens), true).memory.mlp_tile_tokens = 0;
  if (global_batch_of(request) && w.microbatches > 1 && !request.search_pipeline) {
    PlanRequest& without = add(fmt::format("--microbatches {}", w.microbatches), true);
    without.workload.microbatches = without.workload.batch = 1;
    if (!without.global_batch) without.global_batch = global_batch_of(request);
  }
  if (w.pipeline > 1 && !request.search_pipeline && world <= most_for_pipelines) {
    PlanRequest& without = add(fmt::format("--pipeline {}", w.pipeline), false);
    without.search_pipeline = true;
    without.workload.pipeline = without.workload.virtual_stages = 1;
    without.fixed.data.reset();
  }
}

std::vector<Fixed> fixed_choices(const PlanRequest& request, i64 world) {
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
  free("--gate-phases", &Constraints::gate_phases, number(fixed.gate_phases));
  free("--method", &Constraints::method, word(fixed.method));
  free("--layout", &Constraints::layout, word(fixed.layout));
  free("--dkv-return", &Constraints::dkv_return, word(fixed.dkv_return));
  free("--order", &Constraints::order, word(fixed.order));
  free("--recompute", &Constraints::recompute, word(fixed.recompute));
  free("--offload", &Constraints::offload, kinds_text(fixed.offload.value_or(Offload{}), ","));
  add_workload_choices(request, world, list);
  if (fixed.gated) {  // the planner never chooses it, so that it may gain
    list.push_back({"--gated", request, false, true});
    list.back().without.fixed.gated = false;
  }
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

PlanResult searched_anew(const PlanRequest& request) {
  StepPricer pricer(request);
  return search_with(request, pricer);
}

}  // namespace

std::vector<FlagCost> flag_costs(const PlanRequest& request, StepPricer& pricer, const PlanCandidate& best) {
  std::vector<FlagCost> costs;
  for (const Fixed& fixed : fixed_choices(request, pricer.world())) {
    const PlanRequest without = with_room(fixed.without, fixed.flag);
    const bool data_too = fixed.without.fixed.data && !without.fixed.data;
    const std::string flag =
        data_too ? fmt::format("{} with --data {}", fixed.flag, *request.fixed.data) : fixed.flag;
    if (search_ticks(without, pricer.world(), pricer.devices_per_node()) > tick_share * max_search_ticks)
      continue;
    try {
      const PlanResult other = fixed.reprices ? searched_anew(without) : search_with(without, pricer);
      const double slowdown = best.seconds_per_token / other.best().seconds_per_token - 1;
      if (slowdown > least_cost || fixed.always)
        costs.push_back({flag, slowdown, describe(other.best().choice)});
    } catch (const Error&) {
      continue;  // nothing is possible without it: it costs nothing
    }
  }
  std::stable_sort(costs.begin(), costs.end(),
                   [](const FlagCost& a, const FlagCost& b) { return a.slowdown > b.slowdown; });
  return costs;
}

}  // namespace usp
