// SPDX-License-Identifier: Apache-2.0
#include "compose_parts.hpp"

#include "usp/base/error.hpp"
#include "usp/topology/compose.hpp"
#include "usp/topology/nccl_tests.hpp"
#include "usp/topology/slurm.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace usp::topology {

Cluster hosts_of_slurm(const std::string& text, const std::string& file) {
  const SlurmTopology topology = read_slurm_topology(text, file);
  Cluster cluster;
  for (const std::string& name : topology.node_names) {
    Node node;
    node.id = static_cast<int>(cluster.nodes.size());
    node.name = name;
    cluster.nodes.push_back(std::move(node));
  }
  cluster.fabric = fabric_from(topology);
  cluster.notes = topology.notes;
  cluster.notes.emplace_back(
      "topology.conf names hosts and switches, no devices: describe a host and add --slurm");
  return cluster;
}

void apply_slurm(Cluster& cluster, const std::string& text, const std::string& file) {
  const SlurmTopology topology = read_slurm_topology(text, file);
  const std::size_t named = topology.node_names.size();
  if (cluster.nodes.size() == 1 && named > 1)
    cluster = replicate(cluster, static_cast<int>(named), "--slurm");
  if (cluster.nodes.size() > named)
    throw InvalidInput({file, 0, ""}, fmt::format("names {} hosts, and the cluster has {}; lower --nodes",
                                                  named, cluster.nodes.size()));
  for (Node& node : cluster.nodes) node.name = topology.node_names[static_cast<std::size_t>(node.id)];
  cluster.fabric = fabric_from(topology);
  std::vector<std::vector<int>> leaves;
  for (std::vector<int> leaf : cluster.fabric.leaves) {
    std::erase_if(leaf, [&](int node) { return node >= static_cast<int>(cluster.nodes.size()); });
    if (!leaf.empty()) leaves.push_back(std::move(leaf));
  }
  cluster.fabric.leaves = std::move(leaves);
  cluster.notes.insert(cluster.notes.end(), topology.notes.begin(), topology.notes.end());
}

void apply_curves(Cluster& cluster, const std::string& text, const std::string& file) {
  const NcclTestsResult result = read_nccl_tests(text, file);
  if (!result.operation)
    throw MissingValue({file, 0, ""}, "the collective", "keep the line of the output that names the program");
  if (!result.ranks)
    throw MissingValue({file, 0, ""}, "the number of ranks", "keep the '# Rank' lines of the output");

  std::map<int, MeasuredCurve> blocks;
  for (const NcclTestsRow& row : result.rows) {
    const auto& timing = row.out_of_place ? row.out_of_place : row.in_place;
    if (!timing || timing->time_us <= 0) continue;
    MeasuredCurve& curve = blocks[row.block];
    curve.points.push_back({static_cast<double>(row.size_bytes), timing->time_us * 1e-6});
  }
  for (auto& [block, curve] : blocks) {
    curve.collective = *result.operation;
    curve.ranks = *result.ranks;
    curve.hosts = static_cast<int>(result.hosts.size());
    curve.source = file;
    cluster.curves.push_back(std::move(curve));
  }
  cluster.notes.insert(cluster.notes.end(), result.notes.begin(), result.notes.end());
}

}  // namespace usp::topology
