// SPDX-License-Identifier: Apache-2.0
#include "compose_parts.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/topology/compose.hpp"
#include "usp/topology/nccl_tests.hpp"
#include "usp/topology/slurm.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

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

namespace {

/// Trays of one rack share an NVSwitch: the devices of a block become one NVLink domain.
void join_blocks(Cluster& cluster) {
  const bool racks = !cluster.domains.empty() && !cluster.specs.empty() &&
                     std::all_of(cluster.specs.begin(), cluster.specs.end(), [](const DeviceSpec& spec) {
                       return spec.name.rfind("gb200", 0) == 0 || spec.name.rfind("gb300", 0) == 0;
                     });
  if (!racks) {
    cluster.notes.emplace_back(
        "blocks are taken as leaf switches; NVLink domains stay as the source shows them");
    return;
  }
  std::vector<NvlinkDomain> joined;
  std::vector<int> block_of(cluster.nodes.size(), -1);
  for (std::size_t b = 0; b < cluster.fabric.leaves.size(); ++b)
    for (const int node : cluster.fabric.leaves[b])
      block_of[static_cast<std::size_t>(node)] = static_cast<int>(b);
  joined.resize(cluster.fabric.leaves.size(), NvlinkDomain{{}, true, cluster.domains.front().gb_s});
  for (Device& device : cluster.devices) {
    device.nvlink_domain = block_of[static_cast<std::size_t>(device.node)];
    joined[static_cast<std::size_t>(device.nvlink_domain)].devices.push_back(device.id);
  }
  cluster.domains = std::move(joined);
  cluster.notes.push_back(fmt::format("the devices of a block share NVLink: {} over {}",
                                      counted(cluster.domains.size(), "domain"),
                                      counted(cluster.nodes.size(), "host")));
}

}  // namespace

void apply_slurm(Cluster& cluster, const std::string& text, const std::string& file) {
  const SlurmTopology topology = below_one_root(read_slurm_topology(text, file),
                                                cluster.nodes.size() > 1 ? cluster.nodes.size() : 0, file);
  const std::size_t named = topology.node_names.size();
  if (cluster.nodes.size() == 1 && named > 1)
    cluster = replicate(cluster, static_cast<int>(named), "--slurm");
  if (cluster.nodes.size() > named)
    throw InvalidInput({file, 0, ""}, fmt::format("names {}, and the cluster has {}; lower --nodes",
                                                  counted(named, "host"), cluster.nodes.size()));
  for (Node& node : cluster.nodes) node.name = topology.node_names[static_cast<std::size_t>(node.id)];
  cluster.fabric = fabric_from(topology);
  std::vector<std::vector<int>> leaves;
  for (std::vector<int> leaf : cluster.fabric.leaves) {
    std::erase_if(leaf, [&](int node) { return node >= static_cast<int>(cluster.nodes.size()); });
    if (!leaf.empty()) leaves.push_back(std::move(leaf));
  }
  cluster.fabric.leaves = std::move(leaves);
  cluster.notes.insert(cluster.notes.end(), topology.notes.begin(), topology.notes.end());
  if (!topology.blocks.empty()) join_blocks(cluster);
}

namespace {

/// Runs of the same test over the same sizes are samples: each point becomes their median.
void join_samples(const std::vector<NcclTestsRow>& rows, std::map<int, MeasuredCurve>& blocks) {
  using Kind = std::tuple<std::string, std::string, int>;
  std::map<Kind, int> first_of;
  std::map<int, std::map<double, std::vector<double>>> samples;
  for (const NcclTestsRow& row : rows) {
    const auto curve = blocks.find(row.block);
    if (curve == blocks.end()) continue;
    const int first = first_of.emplace(Kind{row.type, row.redop, row.root}, row.block).first->second;
    for (const auto& point : curve->second.points)
      if (point.bytes == static_cast<double>(row.size_bytes))
        samples[first][point.bytes].push_back(point.time_s);
  }
  blocks.clear();
  for (auto& [block, points] : samples)
    for (auto& [bytes, seconds] : points) {
      std::sort(seconds.begin(), seconds.end());
      blocks[block].points.push_back({bytes, seconds[seconds.size() / 2]});
    }
}

}  // namespace

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
  join_samples(result.rows, blocks);
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
