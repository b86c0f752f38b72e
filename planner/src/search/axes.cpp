// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/detail/axes.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace usp {
namespace {

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

/// World ranks of every group of one axis: ranks that differ in that axis only.
std::vector<std::vector<int>> groups_of(int world, int degree, int stride) {
  std::vector<std::vector<int>> groups;
  for (int first = 0; first < world; ++first) {
    if (first / stride % degree != 0) continue;
    std::vector<int>& group = groups.emplace_back();
    for (int i = 0; i < degree; ++i) group.push_back(first + i * stride);
  }
  return groups;
}

/// @param bridged NVLink joins some ranks of a group, not all
std::string words(const topology::Cluster& cluster, const AxisView& axis, bool bridged) {
  const std::string hosts = fmt::format("{} hosts", axis.hosts);
  if (axis.spans_hosts) return fmt::format("spans {}: crosses the NICs", hosts);
  const bool xgmi = std::any_of(cluster.links.begin(), cluster.links.end(), [](const topology::Link& link) {
    return link.kind == topology::LinkKind::xgmi;
  });
  if (!axis.one_domain && cluster.links.empty()) return "inside one host";
  const std::string link = axis.one_domain ? (xgmi ? "xGMI" : "NVLink") : "PCIe";
  if (axis.hosts > 1) return fmt::format("{} across {} of one domain; nothing crosses the NICs", link, hosts);
  return fmt::format("{} inside one host{}{}", link, bridged ? ", NVLink between some of its ranks" : "",
                     cluster.nodes.size() > 1 ? "; nothing crosses the NICs" : "");
}

void look(const topology::Cluster& cluster, const std::vector<int>& devices, Transport inside,
          AxisView& axis) {
  axis.one_domain = true;
  bool bridged = false;
  for (const std::vector<int>& group : axis.groups) {
    std::set<int> hosts, domains;
    for (int rank : group) {
      const topology::Device& device = cluster.devices[at(devices[at(rank)])];
      hosts.insert(device.node);
      const bool first = domains.insert(device.nvlink_domain).second;
      bridged = bridged || (!first && device.nvlink_domain >= 0);
    }
    const bool joined = domains.size() == 1 && *domains.begin() >= 0;
    axis.hosts = std::max(axis.hosts, static_cast<int>(hosts.size()));
    axis.one_domain = axis.one_domain && joined;
    axis.spans_hosts = axis.spans_hosts || (hosts.size() > 1 && !joined);
  }
  axis.transport = axis.spans_hosts ? Transport::nccl : inside;
  axis.where = words(cluster, axis, bridged && !axis.one_domain);
}

}  // namespace

std::vector<int> world_devices(const Mesh& mesh, const Placement& placement, int pipeline) {
  const int stage_ranks = placement.groups() * mesh.size();
  std::vector<int> devices;
  devices.reserve(at(stage_ranks * pipeline));
  for (int stage = 0; stage < pipeline; ++stage)
    for (int replica = 0; replica < placement.data; ++replica)
      for (int p = 0; p < mesh.size(); ++p)
        for (int t = 0; t < placement.tensor; ++t)
          devices.push_back(stage * stage_ranks +
                            placement.device_of(mesh, replica * placement.tensor + t, p));
  return devices;
}

std::vector<AxisView> axes_of(const topology::Cluster& cluster, const Mesh& mesh, const Placement& placement,
                              int pipeline, Transport transport) {
  const std::vector<int> devices = world_devices(mesh, placement, pipeline);
  const int world = static_cast<int>(devices.size());
  expects(devices.size() <= cluster.devices.size(), "a mesh larger than its cluster");
  const int tensor = placement.tensor;
  const std::pair<const char*, std::pair<int, int>> all[] = {
      {"tensor", {tensor, 1}},
      {"ulysses", {mesh.ulysses, tensor}},
      {"ring", {mesh.ring(), tensor * mesh.ulysses}},
      {"data", {placement.data, tensor * mesh.size()}}};
  std::vector<AxisView> axes;
  for (const auto& [name, shape] : all) {
    const auto [degree, stride] = shape;
    if (degree == 1) continue;
    AxisView& axis = axes.emplace_back();
    axis.name = name;
    axis.degree = degree;
    axis.groups = groups_of(world, degree, stride);
    look(cluster, devices, transport, axis);
  }
  return axes;
}

std::vector<AxisView> axes_of_step(const topology::Cluster& cluster, const Mesh& mesh,
                                   const Placement& placement, int pipeline, Transport transport,
                                   bool training) {
  std::vector<AxisView> axes = axes_of(cluster, mesh, placement, pipeline, transport);
  const int parts = (mesh.ring() > 1 ? 1 : 0) + (mesh.ulysses > 1 ? 1 : 0) + (placement.data > 1 ? 1 : 0);
  if (!training || parts < 2) return axes;
  const std::vector<int> devices = world_devices(mesh, placement, pipeline);
  AxisView& axis = axes.emplace_back();
  axis.name = "gradients";
  axis.degree = placement.data * mesh.size();
  axis.groups = groups_of(static_cast<int>(devices.size()), axis.degree, placement.tensor);
  look(cluster, devices, Transport::nccl, axis);
  return axes;
}

std::string rank_list(const std::vector<int>& ranks) {
  if (ranks.empty()) return "";
  const int step = ranks.size() > 1 ? ranks[1] - ranks[0] : 1;
  bool regular = ranks.size() > 2;
  for (std::size_t i = 1; i < ranks.size(); ++i) regular = regular && ranks[i] - ranks[i - 1] == step;
  if (regular && step == 1) return fmt::format("{}-{}", ranks.front(), ranks.back());
  if (regular && ranks.size() > 4) return fmt::format("{}-{} by {}", ranks.front(), ranks.back(), step);
  return fmt::format("{}", fmt::join(ranks, " "));
}

}  // namespace usp
