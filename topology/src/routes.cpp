// SPDX-License-Identifier: Apache-2.0
#include "usp/topology/routes.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>

namespace usp::topology {
namespace {

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

/// NUMA node of every device as a dense index per host: what the source says, else the groups that its PCIe
/// paths form (a path of kind SYS is what leaves a NUMA node).
std::vector<int> numa_groups(const Cluster& cluster) {
  std::vector<int> root(cluster.devices.size());
  std::iota(root.begin(), root.end(), 0);
  const auto find = [&](int x) {
    while (root[at(x)] != x) x = root[at(x)];
    return x;
  };
  std::set<int> apart;  // hosts with a SYS path
  for (const Link& link : cluster.links) {
    if (link.kind == LinkKind::sys) apart.insert(cluster.devices[at(link.a)].node);
    if (link.kind == LinkKind::pix || link.kind == LinkKind::pxb || link.kind == LinkKind::phb ||
        link.kind == LinkKind::node)
      root[at(std::max(find(link.a), find(link.b)))] = std::min(find(link.a), find(link.b));
  }
  std::vector<int> group(cluster.devices.size(), 0);
  for (const Device& device : cluster.devices) {
    if (device.numa)
      group[at(device.id)] = *device.numa;
    else if (apart.count(device.node) != 0)
      group[at(device.id)] = find(device.id);
  }
  return group;
}

Quantity sum_of(const std::vector<const Quantity*>& parts) {
  Quantity total{0.0, Provenance::measured, "sum of the NICs below it"};
  for (const Quantity* part : parts) {
    if (!part->known()) return {};
    *total.value += *part->value;
    total.provenance = std::max(total.provenance, part->provenance);
  }
  return parts.empty() ? Quantity{} : total;
}

Quantity uplink(const std::vector<const Quantity*>& nics, const Quantity& oversubscription) {
  Quantity total = sum_of(nics);
  if (!total.known() || !oversubscription.known()) return {};
  *total.value /= *oversubscription.value;
  total.provenance = std::max(total.provenance, oversubscription.provenance);
  total.source = "NICs below it / oversubscription";
  return total;
}

}  // namespace

LinkTable::LinkTable(const Cluster& cluster) {
  ports_.resize(cluster.devices.size());
  prepare_nvlink(cluster);
  prepare_hosts(cluster);
  prepare_nics(cluster);
  prepare_fabric(cluster);
  prepare_proxies();
  // Ring row, Simple column of the hwLat table in NCCL's src/graph/tuning.cc.
  const auto guess = [](double seconds) {
    return Quantity{seconds, Provenance::guess, "NCCL src/graph/tuning.cc, hwLat (ring, Simple)"};
  };
  latency_ = {Quantity{0.0, Provenance::preset, "no transfer"}, guess(3.4e-6), guess(5.7e-6), guess(5.7e-6),
              guess(14e-6)};
  for (const Link& link : cluster.links) {
    if (!link.latency_s.known()) continue;
    const auto kind = at(static_cast<int>(path(link.a, link.b)));
    if (latency_[kind].provenance == Provenance::guess || *latency_[kind].value < *link.latency_s.value)
      latency_[kind] = link.latency_s;
  }
  if (cluster.fabric.latency_s.known())
    latency_[at(static_cast<int>(PathKind::network))] = cluster.fabric.latency_s;
  for (const Resource& item : resources_)
    s_per_byte_.push_back(item.gb_s.known() ? 1e-9 / *item.gb_s.value
                                            : std::numeric_limits<double>::quiet_NaN());
}

int LinkTable::resource(ResourceKind kind, std::string name, const Quantity& gb_s, const char* remedy) {
  resources_.push_back({kind, std::move(name), gb_s, remedy});
  return static_cast<int>(resources_.size()) - 1;
}

void LinkTable::prepare_nvlink(const Cluster& cluster) {
  constexpr const char* remedy = "name the card with --device, or give --nvlink";
  for (const NvlinkDomain& domain : cluster.domains) {
    const int id = static_cast<int>(domains_.size());
    domains_.push_back(
        {domain.switched, static_cast<int>(domain.devices.size()), static_cast<int>(pairs_.size())});
    for (std::size_t i = 0; i < domain.devices.size(); ++i) {
      Ports& ports = ports_[at(domain.devices[i])];
      ports.domain = id;
      ports.index_in_domain = static_cast<int>(i);
      if (!domain.switched) continue;
      const std::string name = fmt::format("device {} NVLink ", domain.devices[i]);
      ports.nvlink_out = resource(ResourceKind::nvlink_out, name + "out", domain.gb_s, remedy);
      ports.nvlink_in = resource(ResourceKind::nvlink_in, name + "in", domain.gb_s, remedy);
    }
    if (!domain.switched) pairs_.resize(pairs_.size() + domain.devices.size() * domain.devices.size(), -1);
  }
  for (const Link& link : cluster.links) {
    const Ports &a = ports_[at(link.a)], &b = ports_[at(link.b)];
    const bool peer = link.kind == LinkKind::nvlink || link.kind == LinkKind::xgmi;
    if (!peer || a.domain < 0 || a.domain != b.domain || domains_[at(a.domain)].switched) continue;
    const Domain& domain = domains_[at(a.domain)];
    for (const auto& [from, to, x, y] :
         {std::tuple(link.a, link.b, &a, &b), std::tuple(link.b, link.a, &b, &a)})
      pairs_[at(domain.first_pair + x->index_in_domain * domain.size + y->index_in_domain)] = resource(
          ResourceKind::nvlink_pair, fmt::format("device {} to {} direct link", from, to), link.gb_s, remedy);
  }
}

void LinkTable::prepare_hosts(const Cluster& cluster) {
  const std::vector<int> group = numa_groups(cluster);
  std::vector<std::map<int, int>> dense(cluster.nodes.size());  // per host: NUMA node -> index
  for (const Device& device : cluster.devices) dense[at(device.node)].emplace(group[at(device.id)], 0);
  for (const Nic& nic : cluster.nics)
    if (nic.numa) dense[at(nic.node)].emplace(*nic.numa, 0);
  for (const Node& node : cluster.nodes) {
    int next = 0;
    for (auto& [numa, index] : dense[at(node.id)]) index = next++;
    const int first = static_cast<int>(numa_links_.size());
    nodes_.push_back({next, first, 0});
    for (int from = 0; from < next; ++from)
      for (int to = 0; to < next; ++to)
        numa_links_.push_back(
            from == to ? -1
                       : resource(ResourceKind::numa, fmt::format("host {} NUMA {} to {}", node.id, from, to),
                                  node.numa_gb_s, "give --numa-bandwidth or name the card with --device"));
  }
  for (const Device& device : cluster.devices) {
    Ports& ports = ports_[at(device.id)];
    ports.node = device.node;
    ports.numa = dense[at(device.node)].at(group[at(device.id)]);
    const std::string name = fmt::format("device {} PCIe slot ", device.id);
    constexpr const char* remedy = "name the card with --device, or give --pcie";
    const Quantity& gb_s = cluster.nodes[at(device.node)].pcie_gb_s;
    ports.slot_up = resource(ResourceKind::slot_up, name + "up", gb_s, remedy);
    ports.slot_down = resource(ResourceKind::slot_down, name + "down", gb_s, remedy);
  }
  for (const Nic& nic : cluster.nics) {
    const int numa = nic.numa ? dense[at(nic.node)].at(*nic.numa) : -1;
    nics_.push_back({0, 0, numa});  // one per NIC for now; prepare_nics lists them per device
  }
}

void LinkTable::prepare_nics(const Cluster& cluster) {
  std::vector<NicPort> by_id = std::move(nics_);
  nics_.clear();
  std::vector<std::vector<int>> of_node(cluster.nodes.size());
  for (const Nic& nic : cluster.nics) {
    const std::string name =
        fmt::format("host {} NIC {}", nic.node,
                    nic.name.empty() ? std::to_string(of_node[at(nic.node)].size()) : nic.name);
    constexpr const char* remedy = "give the rate with --nic, e.g. --nic 400G";
    by_id[at(nic.id)].out = resource(ResourceKind::nic_out, name + " out", nic.gb_s, remedy);
    by_id[at(nic.id)].in = resource(ResourceKind::nic_in, name + " in", nic.gb_s, remedy);
    of_node[at(nic.node)].push_back(nic.id);
  }
  for (const Device& device : cluster.devices) {
    Ports& ports = ports_[at(device.id)];
    // A device whose nearest NIC is not known reaches all of its host.
    const std::vector<int>& near = device.nics.empty() ? of_node[at(device.node)] : device.nics;
    ports.nic_begin = static_cast<int>(nics_.size());
    for (int nic : near) nics_.push_back(by_id[at(nic)]);
    ports.nic_end = static_cast<int>(nics_.size());
    if (near.empty()) continue;
    const std::vector<int>& all = of_node[at(device.node)];
    ports.rail = static_cast<int>(std::find(all.begin(), all.end(), near.front()) - all.begin());
    rails_ = std::max(rails_, ports.rail + 1);
  }
}

void LinkTable::prepare_fabric(const Cluster& cluster) {
  fabric_ = cluster.fabric.kind;
  constexpr const char* remedy = "give --oversubscription and the NIC rate (--nic)";
  std::vector<std::vector<const Quantity*>> below;
  if (fabric_ == FabricKind::rail) {
    below.resize(at(rails_));
    std::set<int> counted;
    for (const Device& device : cluster.devices)
      for (int nic : device.nics)
        if (counted.insert(nic).second)
          below[at(ports_[at(device.id)].rail)].push_back(&cluster.nics[at(nic)].gb_s);
  } else if (fabric_ == FabricKind::fat_tree) {
    // Leaves that are not known are taken one per host: every inter-host byte then meets an uplink.
    std::vector<std::vector<int>> leaves = cluster.fabric.leaves;
    if (leaves.empty())
      for (const Node& node : cluster.nodes) leaves.push_back({node.id});
    for (std::size_t leaf = 0; leaf < leaves.size(); ++leaf)
      for (int node : leaves[leaf]) nodes_[at(node)].leaf = static_cast<int>(leaf);
    below.resize(leaves.size());
    for (const Nic& nic : cluster.nics) below[at(nodes_[at(nic.node)].leaf)].push_back(&nic.gb_s);
  }
  const std::string what = fabric_ == FabricKind::rail ? "rail " : "leaf ";
  for (std::size_t i = 0; i < below.size(); ++i) {
    const Quantity gb_s = uplink(below[i], cluster.fabric.oversubscription);
    leaf_up_.push_back(resource(ResourceKind::leaf_up, fmt::format("{}{} uplinks", what, i), gb_s, remedy));
    leaf_down_.push_back(
        resource(ResourceKind::leaf_down, fmt::format("{}{} downlinks", what, i), gb_s, remedy));
  }
}

void LinkTable::prepare_proxies() {
  if (fabric_ != FabricKind::rail) return;
  proxy_.assign(ports_.size() * at(rails_), -1);
  std::map<int, std::vector<int>> of_node;
  for (std::size_t i = 0; i < ports_.size(); ++i) of_node[ports_[i].node].push_back(static_cast<int>(i));
  for (const auto& [node, devices] : of_node)
    for (int device : devices)
      for (int other : devices) {
        const Ports &from = ports_[at(device)], &via = ports_[at(other)];
        int& slot = proxy_[at(device * rails_ + via.rail)];
        if (slot < 0 && other != device && via.nic_begin != via.nic_end &&
            visit_nvlink(from, via, [](int, double) {}))
          slot = other;
      }
}

void LinkTable::no_nic(int device) const {
  throw MissingValue({"cluster", 0, fmt::format("device {}", device)},
                     fmt::format("the NIC of host {}", ports_[at(device)].node),
                     "give the NICs of each host with --nic, e.g. --nic 8x400G");
}

PathKind LinkTable::path(int source, int destination) const {
  if (source == destination) return PathKind::self;
  const Ports &from = ports_[at(source)], &to = ports_[at(destination)];
  if (visit_nvlink(from, to, [](int, double) {})) return PathKind::nvlink;
  if (from.node != to.node) return PathKind::network;
  return from.numa == to.numa ? PathKind::pcie : PathKind::numa;
}

double LinkTable::seconds_on(std::size_t resource, double bytes) const {
  const double seconds = bytes * s_per_byte_[resource];
  if (std::isnan(seconds))
    throw MissingValue({"cluster", 0, resources_[resource].name}, "the bandwidth",
                       resources_[resource].remedy);
  return seconds;
}

double LinkTable::busiest_s(std::span<const double> loads) const {
  expects(loads.size() == resources_.size(), "one load per resource is needed");
  double longest = 0;
  for (std::size_t i = 0; i < loads.size(); ++i)
    if (loads[i] > 0) longest = std::max(longest, seconds_on(i, loads[i]));
  return longest;
}

double LinkTable::busiest_s(std::span<const double> loads, std::span<const int> loaded) const {
  expects(loads.size() == resources_.size(), "one load per resource is needed");
  double longest = 0;
  for (const int i : loaded) longest = std::max(longest, seconds_on(at(i), loads[at(i)]));
  return longest;
}

std::vector<RouteHop> route(const LinkTable& table, int source, int destination) {
  std::vector<RouteHop> hops;
  table.visit(source, destination, [&](int resource, double share) { hops.push_back({resource, share}); });
  return hops;
}

std::vector<double> loads(const LinkTable& table, std::span<const TransferLoad> transfers) {
  std::vector<double> result(table.resources().size(), 0.0);
  for (const TransferLoad& transfer : transfers)
    table.add(transfer.source, transfer.destination, transfer.bytes, result);
  return result;
}

}  // namespace usp::topology
