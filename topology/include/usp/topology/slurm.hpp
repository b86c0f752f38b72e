// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/topology/cluster.hpp"

#include <string>
#include <vector>

namespace usp::topology {

struct SlurmSwitch {
  std::string name;
  std::vector<std::string> nodes;     ///< of a leaf
  std::vector<std::string> switches;  ///< of a switch above others
  long line = 0;
};

/// The switches of a Slurm topology.conf (plugin topology/tree).
struct SlurmTopology {
  std::vector<SlurmSwitch> switches;    ///< in order of appearance
  std::vector<std::string> node_names;  ///< in order of first appearance
  std::vector<std::string> notes;
};

/// Expands a Slurm host list: "cfc[01-16]", "a[1-3,7],b[01-02]", several brackets in one name. Leading zeros
/// set the width. Throws InvalidInput, before it expands anything, on a malformed list, more than `most`
/// names, or a name of more than 253 bytes.
[[nodiscard]] std::vector<std::string> expand_host_list(const std::string& list, const std::string& file,
                                                        long line, std::size_t most = 65536);

/// Reads topology.conf: SwitchName=NAME with Nodes= or Switches=; keywords in any case, comments, continued
/// lines. LinkSpeed, which Slurm itself does not use, is skipped with a note. Throws InvalidInput (line,
/// token): unknown keys (a topology/block file is named as such), a switch or node in two places, an
/// undefined switch, a loop, a switch with both or neither of Nodes and Switches, more than 65,536 nodes or
/// switches, more than 16 MiB.
[[nodiscard]] SlurmTopology read_slurm_topology(const std::string& text, const std::string& file);

/// A fat tree whose leaves hold nodes by their index in `node_names`; oversubscription and latency stay
/// unknown.
[[nodiscard]] Fabric fabric_from(const SlurmTopology& topology);

}  // namespace usp::topology
