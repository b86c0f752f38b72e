// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/plan.hpp"

#include <algorithm>
#include <cmath>

namespace usp {

Objective objective_of(const PlanRequest& request) {
  return request.objective.value_or(request.workload.training ? Objective::throughput : Objective::latency);
}

std::optional<i64> global_batch_of(const PlanRequest& request) {
  if (request.global_batch) return request.global_batch;
  if (objective_of(request) == Objective::latency) return request.workload.batch;
  return std::nullopt;
}

Workload workload_of(const PlanRequest& request, const Choice& choice) {
  Workload w;
  const Workload& given = request.workload;
  w.seq = given.seq;
  w.batch = given.batch;
  w.dtype = given.dtype;
  w.causal = given.causal;
  w.training = given.training;
  w.optimizer = given.optimizer;
  w.fp32_gradients = given.fp32_gradients;
  w.microbatches = given.microbatches;
  w.pipeline = given.pipeline;
  w.virtual_stages = given.virtual_stages;
  w.expert = given.expert;
  w.sequence_parallel = given.sequence_parallel;
  w.expert_tensor = given.expert_tensor;
  w.expert_load = given.expert_load;
  w.recompute_layers = given.recompute_layers;
  w.offload_layers = given.offload_layers;
  w.alternate_products = given.alternate_products;
  w.recompute = choice.recompute;
  w.offload = choice.offload;
  w.zero_stage = choice.zero_stage;
  if (!choice.split) return w;
  w.batch = choice.split->batch;
  w.microbatches = choice.split->microbatches;
  w.pipeline = choice.split->pipeline;
  w.virtual_stages = choice.split->virtual_stages;
  w.expert = choice.split->expert;
  w.recompute_layers = choice.split->recompute_layers;
  w.offload_layers = choice.split->offload_layers;
  return w;
}

int pipeline_of(const PlanRequest& request, const Choice& choice) {
  return choice.split ? choice.split->pipeline : request.workload.pipeline;
}

MeasuredStep measured_step(const PlanCandidate& c, double seconds) {
  MeasuredStep m;
  m.seconds = seconds;
  m.ratio = seconds / c.step_s;
  m.in_band = m.ratio <= 1 + c.band && m.ratio >= 1 / (1 + c.band);
  m.tokens_s = 1 / (c.seconds_per_token * m.ratio);
  m.flop_s = c.flop_s / m.ratio;
  m.mfu = c.mfu / m.ratio;
  const double missing = seconds - c.step_s;
  for (const TimeTerm& term : c.terms)
    if (term.seconds + missing > 0) m.terms.push_back({term.name, 1 + missing / term.seconds});
  std::stable_sort(m.terms.begin(), m.terms.end(), [](const TermFactor& a, const TermFactor& b) {
    return std::abs(std::log(a.factor)) < std::abs(std::log(b.factor));
  });
  return m;
}

}  // namespace usp
