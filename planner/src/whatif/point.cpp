// SPDX-License-Identifier: Apache-2.0
#include "../search/simplest.hpp"
#include "variant.hpp"

#include "usp/base/error.hpp"

#include <algorithm>

namespace usp {
namespace {

constexpr std::size_t rivals_kept = 4;
constexpr double rival_lead = 1.04;   ///< slower by less may lead near by
constexpr double short_memory = 0.7;  ///< of the card: the smallest layout may soon be the only one

bool same_schedule(const Choice& a, const Choice& b) {
  return same_lead(a, b) && a.dkv_return == b.dkv_return && a.head_chunks == b.head_chunks &&
         a.gate_phases == b.gate_phases && a.placement.order == b.placement.order;
}

const MemoryRow& largest_row(const MemoryTable& table) {
  return *std::max_element(table.rows.begin(), table.rows.end(),
                           [](const MemoryRow& a, const MemoryRow& b) { return a.bytes < b.bytes; });
}

PointPlan summary(const PlanResult& result) {
  PointPlan plan;
  plan.feasible = result.feasible();
  const PlanCandidate& best = result.best();
  plan.choice = best.choice;
  plan.step_s = best.step_s;
  plan.seconds_per_token = best.seconds_per_token;
  plan.band = best.band;
  for (const TimeTerm& term : best.terms) plan.terms.push_back({term.name, term.seconds, term.band, ""});
  plan.memory_bytes = best.memory.total_bytes;
  plan.binding_row = largest_row(best.memory).name;
  plan.runner_up = result.verdict.runner_up;
  plan.margin = result.verdict.margin;
  plan.tie = result.verdict.tie;
  return plan;
}

/// As far as verdicts read it.
PlanCandidate candidate_of(const PointPlan& plan) {
  PlanCandidate c;
  c.choice = plan.choice;
  c.step_s = plan.step_s;
  c.seconds_per_token = plan.seconds_per_token;
  c.terms = plan.terms;
  c.fits = true;
  return c;
}

/// The layouts that can lead near by: the best, its runner-up, others a little slower; and the smallest where
/// memory is short.
std::vector<Choice> rivals_of(const PlanResult& result, double device_bytes) {
  std::vector<Choice> kept = {result.best().choice};
  bool runner_up = false;
  for (const PlanCandidate& c : result.candidates) {
    if (!c.fits || kept.size() == rivals_kept) break;
    const bool other_mesh = !(c.choice.mesh == kept.front().mesh && c.choice.data() == kept.front().data() &&
                              c.choice.tensor() == kept.front().tensor());
    const bool near = c.seconds_per_token <= rival_lead * result.best().seconds_per_token;
    if (near || (other_mesh && !runner_up)) merge_rivals(kept, {c.choice});
    runner_up |= other_mesh;
  }
  const auto least = static_cast<double>(result.candidates[result.pareto.back()].memory.total_bytes);
  if (least > short_memory * device_bytes)
    merge_rivals(kept, {result.candidates[result.pareto.back()].choice});
  return kept;
}

PointPlan nothing(const std::string& why) {
  PointPlan plan;
  plan.why = why;
  return plan;
}

}  // namespace

bool same_lead(const Choice& a, const Choice& b) {
  return a.mesh == b.mesh && a.data() == b.data() && a.tensor() == b.tensor() && a.method == b.method &&
         a.layout == b.layout;
}

void merge_rivals(std::vector<Choice>& list, const std::vector<Choice>& more) {
  for (const Choice& choice : more)
    if (std::none_of(list.begin(), list.end(), [&](const Choice& c) { return same_schedule(c, choice); }))
      list.push_back(choice);
}

PointPlan search_point(const Variant& variant) {
  PlanRequest request = variant.request;
  request.max_candidates = 2 * rivals_kept + 8;
  try {
    StepPricer pricer(request, variant.links);
    const PlanResult result = search_with(request, pricer);
    PointPlan plan = summary(result);
    plan.searched = true;
    plan.kept = rivals_of(result, pricer.device_bytes());
    return plan;
  } catch (const DoesNotFit& error) {
    PointPlan plan = nothing(error.what());
    plan.memory_bytes = error.needed_bytes();
    plan.short_bytes = error.short_bytes();
    plan.searched = true;
    return plan;
  } catch (const Infeasible& error) {
    PointPlan plan = nothing(error.what());
    plan.searched = true;
    return plan;
  }
}

PointPlan price_rivals(const Variant& variant, const std::vector<Choice>& rivals, bool memory_settled) {
  StepPricer pricer(variant.request, variant.links);
  std::vector<PlanResult> fitting;
  std::string why = "none of the layouts near by fits";
  for (const Choice& rival : rivals) {
    PlanRequest one = variant.request;
    one.fixed.ring = rival.mesh.ring();
    one.fixed.ulysses = rival.mesh.ulysses;
    one.fixed.data = rival.data();
    one.fixed.tensor = rival.tensor();
    one.fixed.method = rival.method;
    one.fixed.layout = rival.layout;
    one.fixed.dkv_return = rival.dkv_return;
    one.fixed.head_chunks = rival.head_chunks;
    one.fixed.order = rival.placement.order;
    if (rival.gated) one.fixed.gate_phases = rival.gate_phases;
    if (memory_settled) {
      one.fixed.zero_stage = rival.zero_stage;
      // Of the other modes the planner chooses on how many layers, which a fixed mode leaves at all of them.
      if (!rival.offload.any() &&
          (rival.recompute == Recompute::none || rival.recompute == Recompute::offload))
        one.fixed.recompute = rival.recompute;
    }
    try {
      fitting.push_back(search_with(one, pricer));
    } catch (const Infeasible& error) {
      why = error.what();
    }
  }
  if (fitting.empty()) return nothing(why);
  const auto faster = [](const PlanResult& a, const PlanResult& b) {
    return a.best().seconds_per_token < b.best().seconds_per_token;
  };
  std::stable_sort(fitting.begin(), fitting.end(), faster);
  lead_with_simplest(fitting, [](const PlanResult& r) -> const PlanCandidate& { return r.best(); });
  PointPlan plan = summary(fitting.front());
  plan.runner_up.clear();
  plan.margin = 0;
  plan.tie = false;
  for (const PlanResult& other : fitting) {
    const Choice& choice = other.best().choice;
    if (choice.mesh == plan.choice.mesh && choice.data() == plan.choice.data() &&
        choice.tensor() == plan.choice.tensor())
      continue;
    plan.runner_up = describe(choice);
    plan.margin = std::max(0.0, other.best().seconds_per_token / plan.seconds_per_token - 1);
    plan.tie = within_bands(fitting.front().best(), other.best(), fitting.front().calibration.kernel_error);
    break;
  }
  return plan;
}

bool tied(const PointPlan& a, const PointPlan& b, double kernel_error) {
  return within_bands(candidate_of(a), candidate_of(b), kernel_error);
}

Lead follow(const PointPlan& before, const PointPlan& best, const std::function<PointPlan()>& price_before,
            double kernel_error) {
  Lead lead{best, false, false};
  if (!before.feasible || !best.feasible) {
    lead.changed = before.feasible != best.feasible;
    return lead;
  }
  if (!same_lead(before.choice, best.choice)) {
    PointPlan incumbent = price_before();
    lead.changed = !incumbent.feasible || !tied(best, incumbent, kernel_error);
    if (lead.changed) return lead;
    incumbent.kept = best.kept;
    lead.plan = std::move(incumbent);
  }
  lead.memory_changed = lead.plan.choice.recompute != before.choice.recompute ||
                        lead.plan.choice.offload != before.choice.offload ||
                        lead.plan.choice.zero_stage != before.choice.zero_stage;
  return lead;
}

std::vector<TermDelta> term_deltas(const PointPlan& base, const PointPlan& point) {
  std::vector<TermDelta> deltas;
  for (const TimeTerm& term : base.terms) deltas.push_back({term.name, term.seconds, 0});
  for (const TimeTerm& term : point.terms) {
    const auto same =
        std::find_if(deltas.begin(), deltas.end(), [&](const TermDelta& d) { return d.name == term.name; });
    if (same != deltas.end())
      same->point_s = term.seconds;
    else
      deltas.push_back({term.name, 0, term.seconds});
  }
  return deltas;
}

}  // namespace usp
