// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/cluster_summary.hpp"

#include "usp/base/digest.hpp"
#include "usp/topology/cluster_io.hpp"

namespace usp {

ClusterSummary cluster_summary(const topology::Cluster& cluster) {
  return {cluster.name, cluster.nodes.size(), cluster.devices.size(), cluster_digest(cluster)};
}

std::string cluster_digest(const topology::Cluster& cluster) {
  return Digest().bytes(topology::write_cluster_json(cluster)).hex();
}

}  // namespace usp
