// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/links.hpp"

#include "usp/base/error.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace usp {
namespace {

/// Slots and NICs of all hosts run at the rates of the first one's.
bool alike(const topology::Cluster& cluster) {
  std::vector<std::vector<std::optional<double>>> rates;
  for (const topology::Node& node : cluster.nodes)
    rates.push_back({node.pcie_gb_s.value, node.numa_gb_s.value});
  for (const topology::Nic& nic : cluster.nics)
    rates[static_cast<std::size_t>(nic.node)].push_back(nic.gb_s.value);
  return std::all_of(rates.begin(), rates.end(), [&](const auto& host) { return host == rates.front(); });
}

/// Devices per node when all nodes are alike and filled in order, so that one represents all; else 0.
int uniform_node_size(const topology::Cluster& cluster) {
  if (cluster.nodes.empty() || cluster.devices.size() % cluster.nodes.size() != 0) return 0;
  // Hosts below one leaf meet on its uplinks, or not, as their places in the mesh are.
  if (cluster.fabric.kind == topology::FabricKind::fat_tree &&
      std::any_of(cluster.fabric.leaves.begin(), cluster.fabric.leaves.end(),
                  [](const std::vector<int>& hosts) { return hosts.size() > 1; }))
    return 0;
  const std::size_t size = cluster.devices.size() / cluster.nodes.size();
  for (std::size_t i = 0; i < cluster.devices.size(); ++i) {
    const topology::Device& device = cluster.devices[i];
    if (device.node != static_cast<int>(i / size)) return 0;
    if (device.nics.size() != cluster.devices[i % size].nics.size()) return 0;
  }
  for (const topology::NvlinkDomain& domain : cluster.domains)
    if (!domain.switched) return 0;
  return alike(cluster) ? static_cast<int>(size) : 0;
}

bool divides(int a, int b) {
  return a % b == 0 || b % a == 0;
}

template <class Each>
void each_peer(const Mesh& mesh, int p, schedule::Peers peers, RingShift shift, const Each& each) {
  const int r = mesh.ring_of(p), u = mesh.ulysses_of(p);
  switch (peers) {
    case schedule::Peers::self:
      break;
    case schedule::Peers::shift:
      each(mesh.rank(mesh.row_at(r, shift), u));
      break;
    case schedule::Peers::every_ulysses:
      for (int x = 0; x < mesh.ulysses; ++x) each(mesh.rank(r, x));
      break;
    case schedule::Peers::every_ring:
      for (int x = 0; x < mesh.ring(); ++x) each(mesh.rank(x, u));
      break;
    case schedule::Peers::all_ranks:
      for (int x = 0; x < mesh.size(); ++x) each(x);
      break;
  }
}

}  // namespace

LinkPricer::LinkPricer(const topology::Cluster& cluster, const Calibration& calibration)
    : cluster_(cluster),
      calibration_(calibration),
      table_(cluster),
      devices_per_node_(uniform_node_size(cluster)) {
  intra_node_.bytes.assign(table_.resources().size(), 0.0);
  inter_node_.bytes.assign(table_.resources().size(), 0.0);
}

LinkPricer::MeshPatterns& LinkPricer::patterns(const Mesh& mesh, const Placement& placement) {
  const auto same = [&](const MeshPatterns& p) { return p.mesh == mesh && p.placement == placement; };
  if (last_ < patterns_.size() && same(patterns_[last_])) return patterns_[last_];
  const auto found = std::find_if(patterns_.begin(), patterns_.end(), same);
  last_ = static_cast<std::size_t>(found - patterns_.begin());
  if (found != patterns_.end()) return *found;
  MeshPatterns fresh;
  fresh.mesh = mesh;
  fresh.placement = placement;
  fresh.shifts.assign(static_cast<std::size_t>(mesh.ring()), nullptr);
  return patterns_.emplace_back(std::move(fresh));
}

const TransferPattern& LinkPricer::pattern(MeshPatterns& known, schedule::Peers peers, RingShift shift) {
  const auto once = [&](const TransferPattern*& slot) -> const TransferPattern& {
    if (slot != nullptr) return *slot;
    const TransferPattern found = measure(known.mesh, known.placement, peers, shift);
    for (const TransferPattern& other : known.distinct)
      if (other == found) slot = &other;
    if (slot == nullptr) slot = &known.distinct.emplace_back(found);
    return *slot;
  };
  switch (peers) {
    case schedule::Peers::every_ulysses:
      return once(known.ulysses);
    case schedule::Peers::every_ring:
      return once(known.ring);
    case schedule::Peers::all_ranks:
      return once(known.world);
    default:
      break;
  }
  const auto index = static_cast<std::size_t>(known.mesh.row_at(0, shift));
  return once(known.shifts[index]);
}

bool LinkPricer::node_symmetric(const Mesh& mesh, const Placement& placement) const {
  if (devices_per_node_ == 0 || !placement.devices.empty()) return false;
  if (devices_per_node_ % placement.tensor != 0) return false;
  const int node = devices_per_node_ / placement.tensor;
  const bool near_ulysses = placement.order == AxisOrder::ulysses_inner;
  const int near = near_ulysses ? mesh.ulysses : mesh.ring_inner;
  const int middle = near * (near_ulysses ? mesh.ring_inner : mesh.ring_outer);
  return divides(near, node) && divides(middle, node) && divides(mesh.size(), node) &&
         static_cast<int>(cluster_.devices.size()) == placement.groups() * mesh.size();
}

i64 LinkPricer::sources_followed(const Mesh& mesh, const Placement& placement) const {
  return node_symmetric(mesh, placement) ? devices_per_node_ : i64{placement.groups()} * mesh.size();
}

/// Every host loads the uplinks of a rail as the one does that was followed.
void LinkPricer::load_rails_of_all_hosts() {
  for (const int i : inter_node_.loaded) {
    const topology::ResourceKind kind = table_.resources()[static_cast<std::size_t>(i)].kind;
    if (kind == topology::ResourceKind::leaf_up || kind == topology::ResourceKind::leaf_down)
      inter_node_.bytes[static_cast<std::size_t>(i)] *= static_cast<double>(cluster_.nodes.size());
  }
}

TransferPattern LinkPricer::measure(const Mesh& mesh, const Placement& placement, schedule::Peers peers,
                                    RingShift shift) {
  TransferPattern result;
  const bool one_node = node_symmetric(mesh, placement);
  intra_node_.clear();
  inter_node_.clear();
  std::map<int, int> active, network_active;  // per host
  std::vector<int> last_source(cluster_.nodes.size(), -1);
  for (int g = 0; g < placement.groups(); ++g)
    for (int slot = 0; slot < mesh.size(); ++slot) {
      // In order of device, so that the first host, where it represents all, is a prefix.
      const int p = placement.order == AxisOrder::ulysses_inner
                        ? slot
                        : mesh.rank(slot % mesh.ring(), slot / mesh.ring());
      const int source = placement.device_of(mesh, g, p);
      if (one_node && cluster_.devices[static_cast<std::size_t>(source)].node != 0) break;
      const int own_node = cluster_.devices[static_cast<std::size_t>(source)].node;
      int others = 0, near = 0, hosts = 1;
      bool pcie = false, crosses = false;
      each_peer(mesh, p, peers, shift, [&](int peer) {
        if (peer == p) return;
        ++others;
        const int target = placement.device_of(mesh, g, peer);
        const topology::PathKind path = table_.path(source, target);
        const bool network = path == topology::PathKind::network;
        pcie = pcie || path == topology::PathKind::pcie || path == topology::PathKind::numa;
        near += network ? 0 : 1;
        crosses = crosses || network;
        const int node = cluster_.devices[static_cast<std::size_t>(target)].node;
        if (node != own_node && std::exchange(last_source[static_cast<std::size_t>(node)], source) != source)
          ++hosts;
        Loads& loads = network ? inter_node_ : intra_node_;
        table_.visit(source, target, [&](int resource, double share) { loads.add(resource, share); });
      });
      result.over_pcie = result.over_pcie || pcie;
      result.crosses_network = result.crosses_network || crosses;
      result.hosts = std::max(result.hosts, hosts);
      if (pcie) result.active = std::max(result.active, ++active[own_node]);
      if (crosses) result.network_active = std::max(result.network_active, ++network_active[own_node]);
      result.peers = std::max(result.peers, others);
      result.intra_node_peers = std::max(result.intra_node_peers, near);
    }
  if (one_node && cluster_.fabric.kind == topology::FabricKind::rail) load_rails_of_all_hosts();
  result.intra_node_s_per_byte = table_.busiest_s(intra_node_.bytes, intra_node_.loaded);
  result.inter_node_s_per_byte = table_.busiest_s(inter_node_.bytes, inter_node_.loaded);
  return result;
}

Estimate LinkPricer::intra_node(const TransferPattern& pattern, schedule::Peers peers, WriteMode mode,
                                double bytes_per_peer, Transport transport) const {
  const TransferModel& curves = pattern.over_pcie ? calibration_.over_pcie() : calibration_.comm;
  // What NVSwitch joins does not share links; ranks of a PCIe host do, those of all groups together.
  if (peers == schedule::Peers::shift) return curves.hop(transport, bytes_per_peer, pattern.active);
  const int n = pattern.intra_node_peers + 1;
  Collective operation = Collective::alltoall;
  if (peers == schedule::Peers::every_ring && mode == WriteMode::overwrite &&
      curves.has(Collective::all_gather))
    operation = Collective::all_gather;
  // Sums arrive as messages of this runtime, which a library's reduce-scatter is not.
  if (peers == schedule::Peers::every_ring && mode == WriteMode::accumulate &&
      !calibration_.cluster.empty() && curves.has(Collective::reduce_scatter))
    operation = Collective::reduce_scatter;
  return curves.time(operation, n, bytes_per_peer * n, std::max(1, pattern.active / n), transport);
}

namespace {

NetworkOperation network_operation(schedule::Peers peers, WriteMode mode) {
  if (peers == schedule::Peers::shift) return NetworkOperation::hop;
  if (peers != schedule::Peers::every_ring) return NetworkOperation::alltoall;
  return mode == WriteMode::overwrite ? NetworkOperation::all_gather : NetworkOperation::reduce_scatter;
}

// Beyond the longest message that was measured: as inside hosts.
constexpr double bytes_above_band = 0.25;

}  // namespace

/// The measured time of this very transfer, on lines as fast as the cluster's; false where there is none.
bool LinkPricer::measured_inter_node(const TransferPattern& pattern, NetworkOperation operation,
                                     double bytes_per_peer, TransferTime& result) const {
  const NetworkRates& rates = calibration_.network;
  if (rates.curves.empty()) return false;
  NetworkKey key{operation, pattern.hosts, pattern.intra_node_peers + 1, 1};
  if (operation == NetworkOperation::hop) {
    key.ranks_per_host = pattern.network_active;
  } else {
    if (key.hosts * key.ranks_per_host != pattern.peers + 1) return false;
    if (pattern.network_active % key.ranks_per_host != 0) return false;
    key.groups = pattern.network_active / key.ranks_per_host;
  }
  const NetworkRates::Curve* curve = rates.curve(key);
  if (curve == nullptr) return false;
  const double bytes = bytes_per_peer * key.messages();
  const double measured_s_per_byte = key.messages_per_host() / (rates.line_gb_s * 1e9);
  const double slower = pattern.inter_node_s_per_byte / measured_s_per_byte;
  const double latency_s = rates.latency_s.value_or(0), time_s = curve->table.at(bytes);
  result.inter_node_s = std::min(latency_s, time_s) + std::max(0.0, time_s - latency_s) * slower;
  if (result.inter_node_s <= result.intra_node_s) return true;
  result.band = curve->band;
  if (bytes > curve->most_bytes) {
    result.band += bytes_above_band;
    result.extrapolation |= bits(Extrapolation::bytes);
  }
  return true;
}

void LinkPricer::inter_node(const TransferPattern& pattern, schedule::Peers peers, WriteMode mode,
                            double bytes_per_peer, TransferTime& result) const {
  const NetworkOperation operation = network_operation(peers, mode);
  if (measured_inter_node(pattern, operation, bytes_per_peer, result)) return;
  const bool once =
      operation == NetworkOperation::all_gather || operation == NetworkOperation::reduce_scatter;
  // Gathers and reduce-scatters carry each remote byte once to a host, over the NICs of all its ranks, and
  // NVLink does the rest.
  const int near = once ? pattern.intra_node_peers + 1 : 1, all = pattern.peers + 1;
  const Estimate time = between_hosts(operation, (all + near - 1) / near, near, bytes_per_peer * all,
                                      bytes_per_peer * pattern.inter_node_s_per_byte / near);
  result.inter_node_s = time.seconds;
  if (result.inter_node_s > result.intra_node_s) result.band = time.band;
  result.extrapolation |= time.extrapolation;
}

Estimate LinkPricer::between_hosts(NetworkOperation operation, int hosts, int near, double bytes,
                                   double line_s) const {
  const NetworkRates& rates = calibration_.network;
  const LineShare share = rates.share(operation, hosts, bytes);
  // Measured shares of gathers count every message of every rank.
  const double load_s = share.measured ? line_s * near : line_s;
  const topology::Quantity& latency = table_.latency(topology::PathKind::network);
  const double latency_s = rates.latency_s.value_or(rates.latency_factor * latency.value.value_or(0));
  return {latency_s + load_s / share.value, share.band, share.measured ? 0 : bits(Extrapolation::inter_node)};
}

TransferTime LinkPricer::time(const TransferPattern& pattern, schedule::Peers peers, WriteMode mode,
                              double bytes_per_peer, Transport transport) const {
  TransferTime result;
  if (bytes_per_peer <= 0 || pattern.peers == 0) return result;
  if (pattern.intra_node_peers > 0) {
    const Estimate curve = intra_node(pattern, peers, mode, bytes_per_peer, transport);
    result.intra_node_s = std::max(curve.seconds, bytes_per_peer * pattern.intra_node_s_per_byte);
    result.band = curve.band;
    result.extrapolation = curve.extrapolation;
  }
  if (pattern.crosses_network) inter_node(pattern, peers, mode, bytes_per_peer, result);
  return result;
}

}  // namespace usp
