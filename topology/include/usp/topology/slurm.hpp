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

/// A block of topology/block: hosts with more bandwidth among them, such as the trays of one NVLink rack.
struct SlurmBlock {
  std::string name;
  std::vector<std::string> nodes;
  long line = 0;
};

/// The switches of a Slurm topology.conf (plugin topology/tree), or its blocks (topology/block).
struct SlurmTopology {
  std::vector<SlurmSwitch> switches;    ///< in order of appearance; empty: a file of blocks
  std::vector<SlurmBlock> blocks;       ///< in order of appearance; empty: a file of switches
  std::vector<std::string> roots;       ///< switches without a parent; Slurm starts no job across two
  std::vector<std::string> node_names;  ///< in order of first appearance
  std::vector<std::string> notes;
};

/// Expands a Slurm host list: "cfc[01-16]", "a[1-3,7],b[01-02]", several brackets in one name. Leading zeros
/// set the width. Throws InvalidInput, before it expands anything, on a malformed list, more than `most`
/// names, or a name of more than 253 bytes.
[[nodiscard]] std::vector<std::string> expand_host_list(const std::string& list, const std::string& file,
                                                        long line, std::size_t most = 65536);

/// Reads topology.conf: SwitchName=NAME with Nodes= or Switches=, or BlockName=NAME with Nodes= (and
/// BlockSizes=); keywords in any case, comments, continued lines; and what `scontrol show topology` prints of
/// both, where Level= stands in each line and a switch above others lists the hosts below it too. LinkSpeed,
/// which Slurm itself does not use, is skipped with a note. Throws InvalidInput (line, token): unknown keys,
/// switches beside blocks, a switch or node in two places, an undefined switch, a loop, a switch with both or
/// neither of Nodes and Switches, more than 65,536 nodes or switches, more than 16 MiB.
[[nodiscard]] SlurmTopology read_slurm_topology(const std::string& text, const std::string& file);

/// What is below the first root with that many hosts; a note names what was left out. Throws InvalidInput
/// where no root has so many.
[[nodiscard]] SlurmTopology below_one_root(const SlurmTopology& topology, std::size_t hosts,
                                           const std::string& file);

/// A fat tree whose leaves (or blocks) hold nodes by their index in `node_names`; oversubscription and
/// latency stay unknown.
[[nodiscard]] Fabric fabric_from(const SlurmTopology& topology);

}  // namespace usp::topology
