// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "usp/topology/compose.hpp"
#include "verb.hpp"

namespace usp::cli {

/// The flags by which every verb names its cluster. `finish()` turns them into a request once they are parsed.
struct ClusterFlags {
  ClusterRequest request;
  std::string format = "auto";
  std::string devices;
  std::string pcie, nvlink, numa;

  /// Parses what is kept as text. Throws UsageError naming the flag.
  [[nodiscard]] ClusterRequest finish() const;
};

/// Adds the group "Cluster". `source_option` is "FILE" for a positional argument or "--cluster" for a flag.
std::shared_ptr<ClusterFlags> add_cluster_flags(CLI::App& verb, const std::string& source_option);

/// Composes the cluster and prints its notes on stderr.
[[nodiscard]] Cluster load_cluster(const ClusterFlags& flags, const Invocation& invocation);

}  // namespace usp::cli
