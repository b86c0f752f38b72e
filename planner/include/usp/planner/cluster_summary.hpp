// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/topology/cluster.hpp"

#include <cstddef>
#include <string>

namespace usp {

/// The cluster that a report was priced on, as `request` echoes it.
struct ClusterSummary {
  std::string name;
  std::size_t nodes = 0, devices = 0;
  std::string digest;  ///< cluster_digest: equal for clusters of equal descriptions
};

[[nodiscard]] ClusterSummary cluster_summary(const topology::Cluster& cluster);

/// Digest of the cluster's JSON, which plan files and requests hold.
[[nodiscard]] std::string cluster_digest(const topology::Cluster& cluster);

}  // namespace usp
