// SPDX-License-Identifier: Apache-2.0
#include "search_size.hpp"
#include "step_pricer.hpp"

#include "usp/base/error.hpp"
#include "usp/base/units.hpp"

#include <fmt/format.h>

#include <cmath>

namespace usp {
namespace {

/// Of a ring that ships latents: the method that is priced so.
PlanRequest with_latent(const PlanRequest& request) {
  PlanRequest latent = request;
  latent.latent_kv = true;
  latent.fixed.method = Method{};  // ring
  latent.fixed.dkv_return = DkvReturn::circulate;
  latent.fixed.head_chunks = 1;
  latent.fixed.ulysses = 1;
  latent.max_candidates = 1;
  latent.progress = nullptr;
  return latent;
}

/// Whether the user's constraints leave room for a ring of latents.
bool allows_latent(const PlanRequest& request) {
  const Constraints& fixed = request.fixed;
  return request.model->mla && fixed.ring != 1 && fixed.ulysses.value_or(1) == 1 &&
         fixed.method.value_or(Method{}) == Method{} && fixed.head_chunks.value_or(1) == 1 &&
         fixed.dkv_return.value_or(DkvReturn::circulate) == DkvReturn::circulate;
}

/// Searches rings alone: a search of many devices already takes its time.
constexpr double latent_tick_share = 0.2;

}  // namespace

void add_latent(const PlanRequest& request, StepPricer& pricer, PlanResult& result) {
  if (!allows_latent(request)) return;
  PlanRequest latent = with_latent(request);
  if (request.search_pipeline) {  // those of the plan it is held against
    const StepSplit& split = *result.best().choice.split;
    latent.search_pipeline = false;
    latent.workload.pipeline = split.pipeline;
    latent.workload.virtual_stages = split.virtual_stages;
  }
  if (search_ticks(latent, pricer.world(), pricer.devices_per_node()) > latent_tick_share * max_search_ticks)
    return;
  try {
    PlanResult found = search_with(latent, pricer);
    const double change = found.best().seconds_per_token / result.best().seconds_per_token - 1;
    result.notes.push_back(fmt::format(
        "{} would take {} per token {} than the plan; the runtime cannot execute it (--latent-kv prices it "
        "alone)",
        describe(found.best().choice), format_percent(std::abs(change)), change < 0 ? "less" : "more"));
    result.candidates.push_back(std::move(found.candidates.front()));
  } catch (const Infeasible&) {
    return;  // no ring of latents fits or is legal
  }
}

PlanResult search_latent(const PlanRequest& request, StepPricer& pricer) {
  if (!request.model->mla)
    throw UsageError("--latent-kv: " + request.model->name + " has no latent attention; drop the flag");
  if (!allows_latent(request))
    throw UsageError(
        "--latent-kv: a plain ring alone ships latents; free --ulysses, --method, --dkv-return, "
        "--head-chunks and "
        "--ring 1");
  PlanRequest latent = with_latent(request);
  latent.max_candidates = request.max_candidates;
  latent.progress = request.progress;
  PlanResult result = search_with(latent, pricer);
  add_notes(request, result);
  return result;
}

}  // namespace usp
