// SPDX-License-Identifier: Apache-2.0
#include "report_parts.hpp"

#include "usp/planner/detail/axes.hpp"
#include "usp/topology/cluster_io.hpp"

#include <algorithm>
#include <set>

namespace usp {
namespace {

constexpr std::size_t max_devices = 2048;  ///< whose seats the page holds

/// What a device does.
struct Seat {
  int rank = -1;  ///< of the world; -1: idle
  int stage = 0, replica = 0, ring = 0, ulysses = 0, tensor = 0;
};

/// Index = device.
std::vector<Seat> seats_of(const topology::Cluster& cluster, const Choice& choice, int pipeline) {
  std::vector<Seat> seats(cluster.devices.size());
  const std::vector<int> devices = world_devices(choice.mesh, choice.placement, pipeline);
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    const auto device = static_cast<std::size_t>(devices[rank]);
    if (devices[rank] < 0 || device >= seats.size()) continue;
    const int slot = static_cast<int>(rank) / choice.tensor();
    const int p = slot % choice.mesh.size(), group = slot / choice.mesh.size();
    seats[device] = {static_cast<int>(rank),    group / choice.data(),
                     group % choice.data(),     choice.mesh.ring_of(p),
                     choice.mesh.ulysses_of(p), static_cast<int>(rank) % choice.tensor()};
  }
  return seats;
}

Json known_or_null(const topology::Quantity& quantity) {
  return quantity.known() ? Json(*quantity.value) : Json(nullptr);
}

/// Hosts that are drawn: whole ones, from the first.
int drawn_hosts(const topology::Cluster& cluster) {
  int hosts = 0;
  for (const topology::Device& device : cluster.devices)
    if (static_cast<std::size_t>(device.id) < max_devices) hosts = std::max(hosts, device.node + 1);
  return hosts;
}

Json devices_json(const topology::Cluster& cluster, const std::vector<Seat>& seats, int hosts) {
  Json list = Json::array();
  for (const topology::Device& device : cluster.devices) {
    if (device.node >= hosts) continue;
    const Seat& seat = seats[static_cast<std::size_t>(device.id)];
    list.push_back({{"id", device.id},
                    {"host", device.node},
                    {"local", device.local},
                    {"domain", device.nvlink_domain},
                    {"nics", device.nics},
                    {"rank", seat.rank},
                    {"stage", seat.stage},
                    {"data", seat.replica},
                    {"ring", seat.ring},
                    {"ulysses", seat.ulysses},
                    {"tensor", seat.tensor}});
  }
  return list;
}

/// Direct links; those of a switch are drawn as the switch.
Json links_json(const topology::Cluster& cluster, int hosts) {
  Json list = Json::array();
  for (const topology::Link& link : cluster.links) {
    const topology::Device &a = cluster.devices[static_cast<std::size_t>(link.a)],
                           &b = cluster.devices[static_cast<std::size_t>(link.b)];
    const bool direct = link.kind == topology::LinkKind::nvlink || link.kind == topology::LinkKind::xgmi ||
                        link.kind == topology::LinkKind::c2c;
    const bool through_switch = a.nvlink_domain >= 0 && a.nvlink_domain == b.nvlink_domain &&
                                cluster.domains[static_cast<std::size_t>(a.nvlink_domain)].switched;
    if (!direct || through_switch || a.node >= hosts || b.node >= hosts) continue;
    list.push_back({{"a", link.a},
                    {"b", link.b},
                    {"kind", topology::link_kind_name(link.kind)},
                    {"lanes", link.lanes},
                    {"gb_s", known_or_null(link.gb_s)}});
  }
  return list;
}

/// NVLink domains of the drawn devices.
Json domains_json(const topology::Cluster& cluster) {
  Json list = Json::array();
  for (const topology::NvlinkDomain& domain : cluster.domains) {
    std::set<int> hosts;
    for (const int device : domain.devices)
      hosts.insert(cluster.devices[static_cast<std::size_t>(device)].node);
    list.push_back({{"devices", domain.devices.size()},
                    {"hosts", hosts.size()},
                    {"switched", domain.switched},
                    {"gb_s", known_or_null(domain.gb_s)}});
  }
  return list;
}

Json nics_json(const topology::Cluster& cluster, int hosts) {
  Json list = Json::array();
  for (const topology::Nic& nic : cluster.nics)
    if (nic.node < hosts)
      list.push_back(
          {{"id", nic.id}, {"host", nic.node}, {"name", nic.name}, {"gb_s", known_or_null(nic.gb_s)}});
  return list;
}

}  // namespace

Json report_machine_json(const ReportInput& input) {
  const topology::Cluster& cluster = *input.request->cluster;
  const Choice& choice = input.plan->best().choice;
  const std::vector<Seat> seats = seats_of(cluster, choice, pipeline_of(*input.request, choice));
  const int hosts = drawn_hosts(cluster);
  Json json;
  json["hosts"] = hosts;
  json["all_hosts"] = cluster.nodes.size();
  json["device_kind"] = cluster.specs.front().name;
  json["pcie_gb_s"] = known_or_null(cluster.nodes.front().pcie_gb_s);
  json["devices"] = devices_json(cluster, seats, hosts);
  json["links"] = links_json(cluster, hosts);
  json["domains"] = domains_json(cluster);
  json["nics"] = nics_json(cluster, hosts);
  json["fabric"] = topology::fabric_kind_name(cluster.fabric.kind);
  json["leaves"] = cluster.fabric.leaves;
  return json;
}

}  // namespace usp
