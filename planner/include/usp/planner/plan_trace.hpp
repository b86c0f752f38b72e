// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/calibration.hpp"
#include "usp/schedule/plan_file.hpp"
#include "usp/topology/cluster.hpp"

#include <optional>
#include <string>
#include <vector>

namespace usp {

struct PlanTraceRequest {
  const PlanFile* plan = nullptr;
  std::size_t layer = 0;
  std::optional<std::vector<i64>> documents;   ///< of another batch; empty: those of the plan
  const topology::Cluster* cluster = nullptr;  ///< to price ticks on; empty: the plan's time, ticks alike
  const Calibration* calibration = nullptr;    ///< of the cluster
  int max_ranks = 16;                          ///< of the group, from 0: more are hard to look at
};

/// A Chrome trace (Perfetto opens it) of the schedule of one layer as planned, forward and backward, without
/// running it: per rank a lane of kernels and lanes of transfers from start to due tick, named by tensors,
/// move and peers, and an arrow from each send to its receive. Throws UsageError as explain_text.
[[nodiscard]] std::string plan_trace(const PlanTraceRequest& request);

}  // namespace usp
