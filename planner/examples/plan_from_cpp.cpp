// SPDX-License-Identifier: Apache-2.0
// Plans a training step of Llama-3.1-8B at 1M tokens on 4 DGX-H100 hosts: prints the best layout with its
// time and exposed communication, the second-best, and the plan file, which `usp explain` and the runtime
// read. The program checks that the text of the file parses to the same plan, on all devices of the cluster.
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/make_plan.hpp"
#include "usp/planner/model_config.hpp"
#include "usp/planner/plan.hpp"
#include "usp/topology/compose.hpp"

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

namespace {

/// Communication of attention that its kernels do not hide, in seconds of one step.
double exposed_seconds(const usp::Model& model, const usp::Workload& workload,
                       const usp::PlanCandidate& plan) {
  double per_microbatch = 0;
  for (const usp::LayerAttention& layer : plan.attention)
    per_microbatch += static_cast<double>(model.kinds[layer.kind].calls()) *
                      (layer.price.forward.exposed_s + layer.price.backward.exposed_s);
  return per_microbatch * static_cast<double>(workload.microbatches);
}

void print_candidate(const char* rank, const usp::PlanRequest& request, const usp::PlanCandidate& plan) {
  const usp::Mesh& mesh = plan.choice.mesh;
  std::printf("%s: mesh (%d, %d), method %s: %.2f s +-%.0f%% per step, %.2f s of it exposed communication\n",
              rank, mesh.ring(), mesh.ulysses, std::string(usp::word_of(plan.choice.method)).c_str(),
              plan.step_s, 100 * plan.band, exposed_seconds(*request.model, request.workload, plan));
  std::printf("  %s\n", usp::describe(plan.choice).c_str());
}

/// Throws where the text is not that of the plan.
void check_text(const std::string& text, const usp::PlanFile& plan, std::size_t devices) {
  const usp::PlanFile read = usp::read_plan(text, "plan.json");
  if (usp::write_plan(read) != text || usp::plan_digest(read) != usp::plan_digest(plan))
    throw std::runtime_error("the text of the plan file parses to another plan");
  const usp::Placement& placement = read.placement;
  if (static_cast<std::size_t>(placement.data * placement.tensor * read.mesh.size() * read.pipeline) !=
      devices)
    throw std::runtime_error("the plan leaves devices idle");
}

void plan() {
  const usp::Model model = usp::load_model("llama-3.1-8b");  // or the path of a config.json
  const usp::topology::Cluster cluster = usp::topology::compose({.source = "dgx-h100", .nodes = 4});
  const usp::Calibration calibration = usp::calibration_of(cluster);

  usp::PlanRequest request;
  request.model = &model;
  request.cluster = &cluster;
  request.calibration = &calibration;
  request.workload.seq = usp::i64{1} << 20;
  usp::check_workload(request.workload);
  usp::check_degrees(request);
  const usp::PlanResult result = usp::plan_step(request);

  print_candidate("best", request, result.best());
  if (result.candidates.size() > 1) print_candidate("second", request, result.candidates[1]);
  const usp::PlanFile file = usp::make_plan_file(request, result.best());
  const std::string text = usp::write_plan(file);
  std::printf("plan file:\n%s", text.c_str());
  check_text(text, file, cluster.devices.size());
}

}  // namespace

int main() {
  try {
    plan();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
