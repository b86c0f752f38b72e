// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/topology/cluster.hpp"

#include <string>

namespace usp::topology {

/// Reads the one-line form of a cluster, e.g. `node:4 nvswitch gpu:8(h100-sxm) nic:8(400G) fabric:rail`.
///
///   node:N               hosts, 1 when absent
///   gpu:N  gpu:N(card)   devices per host; required. A card of `usp topo --list`, aliases too (h100)
///   nic:N  nic:N(rate)   NICs per host, dealt to the devices in order; rate in bits (400G) or bytes (50GB/s)
///   numa:N               NUMA nodes per host; devices and NICs are dealt to them in blocks
///   nvswitch             one switched NVLink domain per host
///   nvswitch:N           switched domains of N consecutive devices; they may span hosts (72 on an NVL72
///   rack) nvlink:N             islands of N devices, every pair joined by an equal share of the card's links
///   nvlink:N(L)          the same with L links per pair
///   pairs                nvlink:2 (bridges)
///   cubemesh             the hybrid cube mesh of eight V100 (DGX-1V)
///   xgmi                 every pair of a host joined directly (MI300X)
///   pcie                 no NVLink; the default where none of the above is given
///   fabric:rail          NIC i of every host under one leaf switch
///   fabric:fat_tree(R)   leaf switches with oversubscription R; fat_tree(R,H) with H hosts under each leaf
///   lanes:N              NVLinks per device, where the card has others than its preset
///
/// Tokens come in any order, each at most once. Throws InvalidInput that names the token and its column.
[[nodiscard]] Cluster read_synthetic(const std::string& text, const std::string& file);

/// "rail", "none", "fat_tree", "fat_tree(2)", "fat_tree(2,4)": sets `fabric` for `nodes` hosts.
/// Throws UsageError naming `flag`.
void set_fabric(Fabric& fabric, const std::string& text, int nodes, const std::string& flag);

/// Deals `count` NICs to every host's devices, replacing those that were there.
void deal_nics(Cluster& cluster, int count, const Quantity& gb_s);

}  // namespace usp::topology
