// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/choice_notes.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp {
namespace {

constexpr double least_cost = 0.005;  ///< that is worth a note

/// The flags that fix how the sequence is divided.
std::vector<std::string> fixed_flags(const Constraints& fixed) {
  std::vector<std::string> flags;
  for (const auto& [flag, degree] : {std::pair("--ring", fixed.ring), std::pair("--ulysses", fixed.ulysses),
                                     std::pair("--data", fixed.data), std::pair("--tensor", fixed.tensor),
                                     std::pair("--head-chunks", fixed.head_chunks)})
    if (degree) flags.push_back(fmt::format("{} {}", flag, *degree));
  if (fixed.method) flags.push_back(fmt::format("--method {}", word_of(*fixed.method)));
  if (fixed.layout) flags.push_back(fmt::format("--layout {}", word_of(*fixed.layout)));
  if (fixed.dkv_return) flags.push_back(fmt::format("--dkv-return {}", word_of(*fixed.dkv_return)));
  if (fixed.order) flags.push_back(fmt::format("--order {}", word_of(*fixed.order)));
  return flags;
}

void add_cost(const PlanRequest& request, const PlanCandidate& best, std::vector<std::string>& notes) {
  const std::vector<std::string> flags = fixed_flags(request.fixed);
  if (flags.empty()) return;
  PlanRequest free = request;
  free.fixed = {};
  free.fixed.recompute = request.fixed.recompute;
  free.fixed.zero_stage = request.fixed.zero_stage;
  free.max_candidates = 1;
  try {
    const PlanCandidate other = plan_step(free).best();
    const double cost = best.seconds_per_token / other.seconds_per_token - 1;
    if (cost >= least_cost)
      notes.push_back(fmt::format("{} {} {} per token: without {} {}", join(flags, ", "),
                                  flags.size() > 1 ? "cost" : "costs", format_percent(cost),
                                  flags.size() > 1 ? "them" : "it", describe(other.choice)));
  } catch (const Infeasible&) {  // too large a search without them
  }
}

}  // namespace

std::vector<std::string> choice_notes(const PlanRequest& request, const PlanCandidate& best) {
  std::vector<std::string> notes;
  add_cost(request, best, notes);
  const Choice& choice = best.choice;
  for (const LayerKind& kind : request.model->kinds) {
    if (kind.is_linear()) continue;
    const i64 kv = std::max<i64>(1, kind.kv_heads / choice.tensor());
    if (choice.mesh.ulysses <= kv) continue;
    notes.push_back(fmt::format(
        "ulysses {} is more than the {} KV heads{}: each is attended on {} ranks; Megatron-LM's a2a refuses "
        "that, "
        "DeepSpeed repeats them",
        choice.mesh.ulysses, kv, choice.tensor() > 1 ? fmt::format(" after tensor {}", choice.tensor()) : "",
        (choice.mesh.ulysses + kv - 1) / kv));
    break;
  }
  return notes;
}

PlanResult plan_noted(const PlanRequest& request) {
  PlanResult result = plan_step(request);
  for (std::string& text : choice_notes(request, result.best())) result.notes.push_back(std::move(text));
  return result;
}

}  // namespace usp
