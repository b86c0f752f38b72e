// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/topology/cluster.hpp"

#include <string>
#include <vector>

namespace usp::topology {

/// Reads a cluster file (schema: configs/schema/cluster.v2.schema.json), in full or as a `synthetic`
/// description with the sources of its values. Throws InvalidInput for anything unknown or inconsistent.
[[nodiscard]] Cluster read_cluster_json(const std::string& text, const std::string& file);

/// The cluster in full; reading it back gives an equal value.
[[nodiscard]] std::string write_cluster_json(const Cluster& cluster);

/// The shipped cluster with this name or alias ("dgx-h100"), or nothing.
[[nodiscard]] std::optional<Cluster> find_cluster_preset(const std::string& name);

/// The word for a link kind in files: "nvlink", "pix", ...
[[nodiscard]] std::string link_kind_name(LinkKind kind);
[[nodiscard]] std::string provenance_name(Provenance provenance);
[[nodiscard]] std::string fabric_kind_name(FabricKind kind);

}  // namespace usp::topology
