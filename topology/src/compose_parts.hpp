// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/topology/cluster.hpp"

#include <string>

/// Sources that describe a part of a cluster. Not installed.
namespace usp::topology {

/// The hosts and leaf switches of a Slurm topology.conf; it names no devices.
[[nodiscard]] Cluster hosts_of_slurm(const std::string& text, const std::string& file);

/// Names the hosts of `cluster` and puts them under the switches of a topology.conf. One host is repeated for
/// every host of the file; otherwise the first hosts of the file are taken. Throws InvalidInput when it has
/// too few.
void apply_slurm(Cluster& cluster, const std::string& text, const std::string& file);

/// Adds the curves of an nccl-tests output.
void apply_curves(Cluster& cluster, const std::string& text, const std::string& file);

}  // namespace usp::topology
