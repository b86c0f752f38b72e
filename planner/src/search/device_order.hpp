// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/topology/cluster.hpp"

#include <string>
#include <vector>

namespace usp {

/// Devices of every host so that those joined by the nearest links are neighbours: first the widest NVLinks,
/// then any, xGMI, and PCIe paths from one switch to both sockets. Empty where the natural order is so
/// already, where the cluster lists no links, and where hosts interleave.
[[nodiscard]] std::vector<int> order_by_links(const topology::Cluster& cluster);

/// Adds how ranks are started in that order; nothing for an empty one.
void note_device_order(const std::vector<int>& order, const topology::Cluster& cluster,
                       std::vector<std::string>& notes);

}  // namespace usp
