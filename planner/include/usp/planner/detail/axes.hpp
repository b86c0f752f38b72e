// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/pricing.hpp"
#include "usp/schedule/placement.hpp"
#include "usp/topology/cluster.hpp"

#include <string>
#include <vector>

namespace usp {

/// Devices of every rank in world order: rank = ((stage * data + replica) * P + p) * tensor + tensor rank.
[[nodiscard]] std::vector<int> world_devices(const Mesh& mesh, const Placement& placement, int pipeline = 1);

/// How one axis of the mesh lies on a machine.
struct AxisView {
  std::string name;  ///< "tensor", "ulysses", "ring", "data", "gradients"
  int degree = 1;
  std::vector<std::vector<int>> groups;  ///< world ranks of each group of the axis, in axis order
  int hosts = 1;                         ///< most hosts that one group touches
  bool one_domain = false;               ///< every group lies inside one NVLink (or xGMI) domain
  bool spans_hosts = false;  ///< some group needs the network: it leaves both its host and its domain
  Transport transport = Transport::copy_engine;
  std::string where;  ///< the same in words
};

/// The axes with more than one rank, innermost first: tensor, then ulysses and ring, then data.
/// @param transport of groups that stay inside a host or domain; NCCL carries the others
[[nodiscard]] std::vector<AxisView> axes_of(const topology::Cluster& cluster, const Mesh& mesh,
                                            const Placement& placement, int pipeline, Transport transport);

/// These and, in training, the groups over data x sequence that gradients are summed over ("gradients", by
/// NCCL), where no single axis is that group.
[[nodiscard]] std::vector<AxisView> axes_of_step(const topology::Cluster& cluster, const Mesh& mesh,
                                                 const Placement& placement, int pipeline,
                                                 Transport transport, bool training);

/// "0-7", "0 8 16 24", "0-30 by 2": ranks in a few characters.
[[nodiscard]] std::string rank_list(const std::vector<int>& ranks);

}  // namespace usp
