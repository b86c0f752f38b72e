// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/topology/cluster.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace usp::topology {

/// Something that transfers share. All are one direction.
enum class ResourceKind {
  nvlink_out,  ///< a device's port into its NVLink switch
  nvlink_in,
  nvlink_pair,  ///< the direct links from one device to another
  slot_up,      ///< a device's PCIe slot, device to host
  slot_down,
  numa,  ///< from one NUMA node of a host to another
  nic_out,
  nic_in,
  leaf_up,  ///< a leaf switch's uplinks, or a rail's on a rail-optimised fabric
  leaf_down,
};

struct Resource {
  ResourceKind kind = ResourceKind::nvlink_out;
  std::string name;  ///< "device 3 NVLink out", for reports
  Quantity gb_s;
  std::string remedy;  ///< the flag that supplies an unknown bandwidth
};

/// How far two devices are from each other: which latency and which measured curve holds.
enum class PathKind { self, nvlink, pcie, numa, network };

/// Part of a transfer's bytes on one resource.
struct RouteHop {
  int resource = 0;
  double share = 1;
};

struct TransferLoad {
  int source = 0;
  int destination = 0;
  double bytes = 0;
};

/// The shared resources of a cluster and the route between any two of its devices, prepared so that a route
/// is a few table look-ups. Immutable, independent of the cluster it was made from.
class LinkTable {
 public:
  explicit LinkTable(const Cluster& cluster);

  [[nodiscard]] const std::vector<Resource>& resources() const { return resources_; }
  [[nodiscard]] int devices() const { return static_cast<int>(ports_.size()); }
  [[nodiscard]] PathKind path(int source, int destination) const;

  /// Calls `hop(resource, share)` for every resource on the way; allocates nothing. Throws MissingValue when
  /// there is no known way (hosts without NICs).
  template <class Hop>
  void visit(int source, int destination, Hop&& hop) const;

  /// Adds a transfer to `loads` (bytes per resource, `resources().size()` long).
  void add(int source, int destination, double bytes, std::span<double> loads) const {
    visit(source, destination,
          [&](int resource, double share) { loads[static_cast<std::size_t>(resource)] += bytes * share; });
  }

  /// Bandwidth part of the time rule: max over resources of load / bandwidth, in seconds.
  /// Throws MissingValue naming the flag when a loaded resource has no known bandwidth.
  [[nodiscard]] double busiest_s(std::span<const double> loads) const;
  /// The same where only the resources `loaded` carry anything.
  [[nodiscard]] double busiest_s(std::span<const double> loads, std::span<const int> loaded) const;

  /// Time of one message without its bytes: what the cluster says, else a guess from NCCL's own tables.
  [[nodiscard]] const Quantity& latency(PathKind kind) const {
    return latency_[static_cast<std::size_t>(kind)];
  }

 private:
  struct Ports {
    int node = 0, numa = 0, domain = -1, index_in_domain = 0, nvlink_out = -1, nvlink_in = -1, slot_up = 0,
        slot_down = 0, nic_begin = 0, nic_end = 0, rail = 0;
  };
  struct Domain {
    bool switched = false;
    int size = 0;
    int first_pair = 0;  // into pairs_, size x size
  };
  struct NicPort {
    int out = 0, in = 0, numa = -1;
  };
  struct NodePorts {
    int numas = 1;
    int first_numa = 0;  // into numa_links_, numas x numas
    int leaf = 0;
  };

  int resource(ResourceKind kind, std::string name, const Quantity& gb_s, const char* remedy);
  void prepare_nvlink(const Cluster& cluster);
  void prepare_hosts(const Cluster& cluster);
  void prepare_nics(const Cluster& cluster);
  void prepare_fabric(const Cluster& cluster);
  void prepare_proxies();
  [[noreturn]] void no_nic(int device) const;
  [[nodiscard]] double seconds_on(std::size_t resource, double bytes) const;

  [[nodiscard]] int nvlink_pair(const Ports& from, const Ports& to) const {
    const Domain& domain = domains_[static_cast<std::size_t>(from.domain)];
    const int pair = domain.first_pair + from.index_in_domain * domain.size + to.index_in_domain;
    return pairs_[static_cast<std::size_t>(pair)];
  }
  [[nodiscard]] int numa_link(int node, int from, int to) const {
    const NodePorts& host = nodes_[static_cast<std::size_t>(node)];
    const int link = host.first_numa + from * host.numas + to;
    return numa_links_[static_cast<std::size_t>(link)];
  }
  template <class Hop>
  bool visit_nvlink(const Ports& from, const Ports& to, Hop&& hop) const;
  template <class Hop>
  void visit_network(int source, int destination, Hop&& hop) const;
  template <class Hop>
  void visit_nics(const Ports& ports, bool out, Hop&& hop) const;

  std::vector<Resource> resources_;
  std::vector<double> s_per_byte_;  // NaN where unknown
  std::vector<Ports> ports_;
  std::vector<Domain> domains_;
  std::vector<int> pairs_;
  std::vector<NodePorts> nodes_;
  std::vector<int> numa_links_;
  std::vector<NicPort> nics_;
  FabricKind fabric_ = FabricKind::unknown;
  int rails_ = 1;
  std::vector<int> proxy_;                // per device x rail: the NVLink neighbour on that rail, or -1
  std::vector<int> leaf_up_, leaf_down_;  // per leaf, or per rail
  std::vector<Quantity> latency_;
};

/// The way from one device to another, for people and tests.
[[nodiscard]] std::vector<RouteHop> route(const LinkTable& table, int source, int destination);

/// Bytes on every resource while all of `transfers` fly.
[[nodiscard]] std::vector<double> loads(const LinkTable& table, std::span<const TransferLoad> transfers);

template <class Hop>
bool LinkTable::visit_nvlink(const Ports& from, const Ports& to, Hop&& hop) const {
  if (from.domain < 0 || from.domain != to.domain) return false;
  if (domains_[static_cast<std::size_t>(from.domain)].switched) {
    hop(from.nvlink_out, 1.0);
    hop(to.nvlink_in, 1.0);
    return true;
  }
  const int pair = nvlink_pair(from, to);
  if (pair < 0) return false;
  hop(pair, 1.0);
  return true;
}

template <class Hop>
void LinkTable::visit_nics(const Ports& ports, bool out, Hop&& hop) const {
  const double share = 1.0 / (ports.nic_end - ports.nic_begin);
  if (out) hop(ports.slot_up, 1.0);
  for (int i = ports.nic_begin; i < ports.nic_end; ++i) {
    const NicPort& nic = nics_[static_cast<std::size_t>(i)];
    if (nic.numa >= 0 && nic.numa != ports.numa)
      hop(out ? numa_link(ports.node, ports.numa, nic.numa) : numa_link(ports.node, nic.numa, ports.numa),
          share);
    hop(out ? nic.out : nic.in, share);
  }
  if (!out) hop(ports.slot_down, 1.0);
}

template <class Hop>
void LinkTable::visit_network(int source, int destination, Hop&& hop) const {
  const Ports& from = ports_[static_cast<std::size_t>(source)];
  const Ports& to = ports_[static_cast<std::size_t>(destination)];
  if (from.nic_begin == from.nic_end) no_nic(source);
  if (to.nic_begin == to.nic_end) no_nic(destination);
  if (fabric_ == FabricKind::rail && from.rail != to.rail) {
    const int pair = source * rails_ + to.rail;
    const int proxy = proxy_[static_cast<std::size_t>(pair)];
    if (proxy >= 0) {  // NCCL's PXN: over NVLink to the neighbour that sits on the destination's rail
      const Ports& via = ports_[static_cast<std::size_t>(proxy)];
      visit_nvlink(from, via, hop);
      visit_nics(via, true, hop);
      visit_nics(to, false, hop);
      return;
    }
  }
  visit_nics(from, true, hop);
  if (fabric_ == FabricKind::rail && from.rail != to.rail) {
    hop(leaf_up_[static_cast<std::size_t>(from.rail)], 1.0);
    hop(leaf_down_[static_cast<std::size_t>(to.rail)], 1.0);
  } else if (fabric_ == FabricKind::fat_tree) {
    const int a = nodes_[static_cast<std::size_t>(from.node)].leaf;
    const int b = nodes_[static_cast<std::size_t>(to.node)].leaf;
    if (a != b) {
      hop(leaf_up_[static_cast<std::size_t>(a)], 1.0);
      hop(leaf_down_[static_cast<std::size_t>(b)], 1.0);
    }
  }
  visit_nics(to, false, hop);
}

template <class Hop>
void LinkTable::visit(int source, int destination, Hop&& hop) const {
  if (source == destination) return;
  const Ports& from = ports_[static_cast<std::size_t>(source)];
  const Ports& to = ports_[static_cast<std::size_t>(destination)];
  if (visit_nvlink(from, to, hop)) return;
  if (from.node != to.node) {
    visit_network(source, destination, hop);
    return;
  }
  hop(from.slot_up, 1.0);
  if (from.numa != to.numa) hop(numa_link(from.node, from.numa, to.numa), 1.0);
  hop(to.slot_down, 1.0);
}

}  // namespace usp::topology
