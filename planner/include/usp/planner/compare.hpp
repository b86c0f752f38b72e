// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/plan_within.hpp"

#include <optional>
#include <string>
#include <vector>

/// `usp compare`: ways to divide a sequence, side by side on one job and machine.
namespace usp {

/// Bytes that a device sends in a step, mean over the devices.
struct LinkBytes {
  double inside = 0;  ///< inside hosts and NVLink domains
  double nics = 0;    ///< over the network
};
/// Of one pass of a plan's schedule on a cluster. Exact total; moves between even parts are spread evenly
/// over their peers.
[[nodiscard]] LinkBytes link_bytes(const topology::Cluster& cluster, const AttentionPlan& plan,
                                   const Documents& documents, const Placement& placement, Pass pass);

/// The best plan of one way.
struct ComparedPlan {
  Choice choice;
  double step_s = 0, seconds_per_token = 0, band = 0;
  double exposed_s = 0;  ///< exchange of attention and of tensor parallelism that shows in a step
  LinkBytes bytes;       ///< of the same exchange, in a step
  i64 memory_bytes = 0;  ///< per device
  bool fits = false;
};
struct ComparedWay {
  std::string name;                  ///< "ring", "megatron a2a+p2p"
  std::string runs_on;               ///< "usp", or the framework
  std::optional<ComparedPlan> plan;  ///< empty: not possible
  std::string impossible_reason;
  std::vector<std::string> also_in;  ///< modes of frameworks with the same exchange: "megatron p2p"

  /// Whether this project's runtime runs it.
  [[nodiscard]] bool executable() const { return plan && runs_on == "usp"; }
};

struct Comparison {
  std::vector<ComparedWay> ways;  ///< in the order of their names' table
  CalibrationSummary calibration;
  std::vector<std::string> notes;
};

/// Plans the step in every way: this project's methods, the modes of frameworks, tensor parallelism with
/// sharded activations, Colossal-AI's ring, LASP-2 where the model has linear layers. Data and tensor degrees
/// that the request leaves free are 1, so that all devices share a sequence.
[[nodiscard]] Comparison compare_ways(const PlanRequest& request);

[[nodiscard]] std::string compare_text(const PlanRequest& request, const Comparison& result);
[[nodiscard]] std::string compare_csv(const Comparison& result);
/// One JSON object (schema: configs/schema/compare.v2.schema.json).
[[nodiscard]] std::string compare_json(const PlanRequest& request, const Comparison& result);

}  // namespace usp
