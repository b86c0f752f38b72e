// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/model_config.hpp"
#include "usp/planner/plan.hpp"
#include "usp/topology/compose.hpp"

#include <optional>
#include <string>

namespace usp {

/// A model on a machine, and what is asked of them.
struct Step {
  topology::Cluster cluster;
  Calibration calibration;
  Model model;
  PlanRequest request;

  Step(const char* preset, int nodes, const char* machine = "dgx-h100")
      : cluster(topology::compose({.source = machine, .nodes = nodes})),
        calibration(calibration_of(cluster)),
        model(load_model(preset)) {
    request.cluster = &cluster;
    request.calibration = &calibration;
    request.model = &model;
    request.workload.seq = 8192;
  }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  /// One layout of all degrees 1 but tensor and data.
  PlanCandidate price(int tensor, int data, Recompute recompute = Recompute::full, int zero = 3) {
    Choice choice;
    choice.placement.tensor = tensor;
    choice.placement.data = data;
    choice.layout = LayoutKind::contiguous;
    choice.recompute = recompute;
    choice.zero_stage = zero;
    return price_choice(request, choice);
  }
};

inline double seconds(const PlanCandidate& c, const std::string& name) {
  for (const TimeTerm& term : c.terms)
    if (term.name == name) return term.seconds;
  return 0;
}

}  // namespace usp
