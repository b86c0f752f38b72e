// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "verb.hpp"

#include "usp/planner/step_input.hpp"

#include <string>

namespace usp::cli {

/// The flags by which every verb names its cluster, and how its kernels are timed.
struct ClusterFlags {
  topology::ClusterRequest request;
  std::string calibration;  ///< file or shipped calibration; empty: that of the cluster
};

/// Adds the group "Cluster". `source_option` is "FILE" for a positional argument or "--cluster" for a flag.
/// Returns the source's option.
CLI::Option* add_cluster_flags(const Verb& verb, ClusterFlags& flags, const std::string& source_option);

/// Adds --calibration; `fallback` names the calibration without it.
void add_calibration_flag(const Verb& verb, ClusterFlags& flags, const char* group,
                          const std::string& fallback);

/// Composes the cluster and prints its notes on stderr.
[[nodiscard]] topology::Cluster load_cluster(const ClusterFlags& flags, const Invocation& invocation);

/// Notes that --p2p changes no price of the cluster, where that is so.
void note_void_p2p(const ClusterFlags& flags, const topology::Cluster& cluster,
                   const Calibration& calibration, const Invocation& invocation);

/// Prints notes on stderr; `invocation` outlives it.
[[nodiscard]] NoteSink note_sink(const Invocation& invocation);

}  // namespace usp::cli
