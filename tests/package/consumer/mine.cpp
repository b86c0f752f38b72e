// SPDX-License-Identifier: Apache-2.0
// The two headers that the README names, used as it says.
#include "usp/planner/expand.hpp"
#include "usp/planner/generate.hpp"
#include "usp/planner/model_config.hpp"
#include "usp/planner/plan.hpp"
#include "usp/topology/compose.hpp"

#include <iostream>

int main() {
  usp::ClusterRequest source;
  source.source = "dgx-h100";
  const usp::Cluster cluster = usp::compose(source);
  const usp::Calibration calibration = usp::load_calibration(cluster.calibration);
  const usp::Model model = usp::load_model("llama-3.1-8b");
  usp::PlanRequest request;
  request.cluster = &cluster;
  request.calibration = &calibration;
  request.model = &model;
  request.workload.seq = 131072;
  const usp::PlanResult result = usp::plan_step(request);
  const usp::AttentionPlan& plan = result.best().attention.front().plan;
  const usp::Geometry geometry(plan, usp::Documents::single(plan.shape.q_tokens, plan.shape.kv_tokens));
  usp::CompactSchedule compact;
  usp::generate(plan, geometry.heads().shared_kv(), compact);
  const usp::RankSchedule schedule = usp::expand(geometry, compact, 0, usp::Pass::forward);
  std::cout << "ring " << plan.mesh.ring() << " x ulysses " << plan.mesh.ulysses << ": "
            << schedule.transfers.size() << " transfers\n";
}
