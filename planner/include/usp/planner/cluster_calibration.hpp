// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/calibration.hpp"
#include "usp/topology/cluster.hpp"
#include "usp/topology/compose.hpp"

#include <string>

namespace usp {

/// The calibration that prices a cluster: `name` (a file or a shipped one), else the one the cluster names.
/// Curves measured on one host of this cluster replace the calibration's; kernels measured on another card
/// are scaled by peak and memory bandwidth and labelled so. Throws MissingValue naming --calibration when
/// neither names one, and --device when the card is not known; UsageError where one of the two computes on
/// the cores of hosts and the other on cards.
[[nodiscard]] Calibration calibration_of(const topology::Cluster& cluster, const std::string& name = "");

/// Why `p2p` of a request changes no price of the cluster that it describes; empty: it is not given, or does.
[[nodiscard]] std::string void_p2p(const topology::ClusterRequest& asked, const topology::Cluster& cluster,
                                   const Calibration& calibration);

/// Most devices that one host has: what "inside the node" means.
[[nodiscard]] int node_size(const topology::Cluster& cluster);

/// Peak, memory bandwidth and link bandwidth of the slowest card. Throws MissingValue naming the flag.
[[nodiscard]] DataSheet data_sheet_of(const topology::Cluster& cluster);

}  // namespace usp
