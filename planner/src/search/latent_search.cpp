// SPDX-License-Identifier: Apache-2.0
#include "search_size.hpp"
#include "step_pricer.hpp"

#include "usp/base/error.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/request_fault.hpp"

#include <fmt/format.h>

#include <cmath>

namespace usp {
namespace {

/// Searches rings alone: a search of many devices already takes its time.
constexpr double latent_tick_share = 0.2;

}  // namespace

PlanRequest ring_of_latents(const PlanRequest& request) {
  PlanRequest latent = request;
  latent.latent_kv = true;
  latent.fixed.method = Method{};  // ring
  latent.fixed.dkv_return = DkvReturn::circulate;
  latent.fixed.head_chunks = 1;
  latent.fixed.ulysses = 1;
  return latent;
}

void add_latent(const PlanRequest& request, StepPricer& pricer, PlanResult& result) {
  if (!allows_latent(request)) return;
  PlanRequest latent = ring_of_latents(request);
  latent.max_candidates = 1;
  latent.progress = nullptr;
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

}  // namespace usp
