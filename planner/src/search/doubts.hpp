// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/calibration.hpp"
#include "usp/planner/guess.hpp"
#include "usp/planner/pricing.hpp"
#include "usp/schedule/mesh.hpp"
#include "usp/schedule/plan.hpp"
#include "usp/schedule/types.hpp"
#include "usp/topology/cluster.hpp"

#include <functional>
#include <string>
#include <vector>

namespace usp {

/// An input with provenance guess or borrowed, and its plausible range as factors of the assumed rate.
struct Doubt {
  enum class Of { links, sockets, network_hop, network_exchange, network_gather, kernels };

  Of of;
  std::string input;
  std::string provenance;
  double low = 1, high = 1;
  /// The machine with that rate times `factor`.
  std::function<void(topology::Cluster&, Calibration&, double factor)> scale;
};

/// What a calibrated price of this cluster rests on without a measurement. Empty for data-sheet prices: there
/// everything is a guess and every report says so.
[[nodiscard]] std::vector<Doubt> doubts_of(const topology::Cluster& cluster, const Calibration& calibration);

/// The command that measures all of a cluster whose devices are ranks of hosts, kernels with tensors of
/// `dtype`.
[[nodiscard]] std::string host_measurement(const topology::Cluster& cluster, DType dtype);

/// The command that measures the input where the two meshes differ: that of all, on the cores of hosts. It
/// runs as it stands; of kernels on cards that no backend runs on there is none, which is said.
[[nodiscard]] std::string measurement_of(Doubt::Of of, const topology::Cluster& cluster, DType dtype,
                                         const Mesh& best, const Mesh& rival);

/// nccl-tests commands for the exchanges of a plan with this price of forward; on the cores of hosts the one
/// that measures all.
[[nodiscard]] std::vector<std::string> exchange_measurements(const topology::Cluster& cluster,
                                                             const AttentionPlan& plan,
                                                             const PassPrice& forward);

/// Puts the measurements of what decides before the others, each once.
void measure_first(const std::vector<GuessedInput>& guesses, std::vector<std::string>& measurements);

/// Of equals the simplest is first: times that differ by less cannot be told apart.
inline constexpr double same_time = 0.005;
/// The same of the attention of a step, whose bands are wider than those of a call.
inline constexpr double same_attention = 0.01;

}  // namespace usp
