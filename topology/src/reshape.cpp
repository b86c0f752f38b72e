// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/topology/compose.hpp"
#include "usp/topology/validate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace usp::topology {
namespace {

/// The new ids, ascending, of those `ids` that `new_id` keeps (-1: dropped).
std::vector<int> kept_of(const std::vector<int>& ids, const std::vector<int>& new_id) {
  std::vector<int> kept;
  for (int id : ids)
    if (new_id[static_cast<std::size_t>(id)] >= 0) kept.push_back(new_id[static_cast<std::size_t>(id)]);
  std::sort(kept.begin(), kept.end());
  return kept;
}

std::vector<Link> kept_links(const std::vector<Link>& all, const std::vector<int>& new_id) {
  std::vector<Link> links;
  for (Link link : all) {
    link.a = new_id[static_cast<std::size_t>(link.a)];
    link.b = new_id[static_cast<std::size_t>(link.b)];
    if (link.a < 0 || link.b < 0) continue;
    if (link.a > link.b) std::swap(link.a, link.b);
    links.push_back(std::move(link));
  }
  std::sort(links.begin(), links.end(),
            [](const Link& x, const Link& y) { return std::pair(x.a, x.b) < std::pair(y.a, y.b); });
  return links;
}

}  // namespace

Cluster select_devices(const Cluster& cluster, const std::vector<int>& ids) {
  Cluster result = cluster;
  result.devices.clear();
  result.spec_of_device.clear();
  std::vector<int> device_at(cluster.devices.size(), -1), node_at(cluster.nodes.size(), -1),
      nic_at(cluster.nics.size(), -1), domain_at(cluster.domains.size(), -1);
  for (int id : ids) {
    device_at[static_cast<std::size_t>(id)] = static_cast<int>(result.devices.size());
    node_at[static_cast<std::size_t>(cluster.devices[static_cast<std::size_t>(id)].node)] = 0;
    result.devices.push_back(cluster.devices[static_cast<std::size_t>(id)]);
    result.spec_of_device.push_back(cluster.spec_of_device[static_cast<std::size_t>(id)]);
  }
  const auto keep = [](auto& list, std::vector<int>& at,
                       const auto& wanted) {  // compacts list, fills the map
    std::size_t kept = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      at[i] = wanted(list[i]) ? static_cast<int>(kept) : -1;
      if (at[i] < 0) continue;
      if (kept != i) list[kept] = std::move(list[i]);
      ++kept;
    }
    list.resize(kept);
  };
  keep(result.nodes, node_at,
       [&](const Node& node) { return node_at[static_cast<std::size_t>(node.id)] == 0; });
  keep(result.nics, nic_at, [&](const Nic& nic) { return node_at[static_cast<std::size_t>(nic.node)] >= 0; });
  for (NvlinkDomain& domain : result.domains) domain.devices = kept_of(domain.devices, device_at);
  keep(result.domains, domain_at, [](const NvlinkDomain& domain) { return domain.devices.size() > 1; });
  result.links = kept_links(cluster.links, device_at);
  for (std::size_t i = 0; i < result.nodes.size(); ++i) result.nodes[i].id = static_cast<int>(i);
  for (std::size_t i = 0; i < result.nics.size(); ++i) {
    result.nics[i].id = static_cast<int>(i);
    result.nics[i].node = node_at[static_cast<std::size_t>(result.nics[i].node)];
  }
  for (std::size_t i = 0; i < result.devices.size(); ++i) {
    Device& device = result.devices[i];
    device.id = static_cast<int>(i);
    device.node = node_at[static_cast<std::size_t>(device.node)];
    if (device.nvlink_domain >= 0)
      device.nvlink_domain = domain_at[static_cast<std::size_t>(device.nvlink_domain)];
    for (int& nic : device.nics) nic = nic_at[static_cast<std::size_t>(nic)];
  }
  result.fabric.leaves.clear();
  for (const auto& leaf : cluster.fabric.leaves) {
    std::vector<int> members = kept_of(leaf, node_at);
    if (!members.empty()) result.fabric.leaves.push_back(std::move(members));
  }
  return result;
}

Cluster replicate(const Cluster& cluster, int count, const std::string& flag) {
  const auto times = [&](const auto& list) { return static_cast<std::int64_t>(list.size()) * count; };
  const std::string fault =
      oversize({times(cluster.nodes), times(cluster.devices), times(cluster.nics), times(cluster.links)});
  if (!fault.empty()) throw UsageError(fmt::format("{}: {}", flag, fault));
  Cluster result = cluster;
  if (count > 1 && result.fabric.kind == FabricKind::none) result.fabric.kind = FabricKind::unknown;
  const int devices = static_cast<int>(cluster.devices.size()),
            nodes = static_cast<int>(cluster.nodes.size()), nics = static_cast<int>(cluster.nics.size()),
            domains = static_cast<int>(cluster.domains.size());
  for (int copy = 1; copy < count; ++copy) {
    for (Node node : cluster.nodes) {
      node.id += copy * nodes;
      result.nodes.push_back(std::move(node));
    }
    for (Nic nic : cluster.nics) {
      nic.id += copy * nics;
      nic.node += copy * nodes;
      result.nics.push_back(std::move(nic));
    }
    for (Device device : cluster.devices) {
      device.id += copy * devices;
      device.node += copy * nodes;
      if (device.nvlink_domain >= 0) device.nvlink_domain += copy * domains;
      for (int& nic : device.nics) nic += copy * nics;
      result.devices.push_back(std::move(device));
    }
    result.spec_of_device.insert(result.spec_of_device.end(), cluster.spec_of_device.begin(),
                                 cluster.spec_of_device.end());
    for (Link link : cluster.links) {
      link.a += copy * devices;
      link.b += copy * devices;
      result.links.push_back(std::move(link));
    }
    for (NvlinkDomain domain : cluster.domains) {
      for (int& device : domain.devices) device += copy * devices;
      result.domains.push_back(std::move(domain));
    }
    for (std::vector<int> leaf : cluster.fabric.leaves) {
      for (int& node : leaf) node += copy * nodes;
      result.fabric.leaves.push_back(std::move(leaf));
    }
  }
  return result;
}

}  // namespace usp::topology
