// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/words.hpp"
#include "usp/topology/cluster.hpp"

#include <optional>
#include <string>
#include <vector>

namespace usp::topology {

enum class SourceFormat { automatic, cluster_json, synthetic, nvidia_smi, nccl_xml, slurm };

/// A source and what is added to it; every verb that takes a cluster fills one of these from the same flags.
struct ClusterRequest {
  std::string source;               ///< preset name, file, "-" for stdin, or a synthetic description itself
  std::optional<std::string> text;  ///< of the source, which `source` then names in messages
  SourceFormat format = SourceFormat::automatic;
  std::string device;                      ///< card name; empty: as the source says
  std::optional<int> nodes;                ///< hosts like the source's
  std::optional<int> gpus;                 ///< devices in all: whole hosts, or the first devices of one
  std::string nic;                         ///< "8x400G", or "400G" for the NICs that are there
  std::string fabric;                      ///< as in set_fabric
  std::optional<double> oversubscription;  ///< of leaf uplinks
  std::optional<double> pcie_gb_s;         ///< per device slot, one direction
  std::optional<double> nvlink_gb_s;       ///< per device, one direction, all its links together
  std::optional<double> numa_gb_s;         ///< between NUMA nodes, one direction
  std::string p2p;                         ///< over PCIe: "yes", "no", or a file of nvidia-smi topo -p2p r
  std::vector<std::string> curves;         ///< nccl-tests outputs
  std::string slurm;                       ///< topology.conf that names the hosts and their switches
  std::vector<int> devices;                ///< visible devices of every host, in this order; empty: all
};

/// Reads the source and applies the rest in this order: visible devices, card, peer-to-peer access, hosts (by
/// their number or by that of all devices), NICs, fabric, Slurm, curves. The result is valid. Throws
/// InvalidInput or UsageError.
[[nodiscard]] Cluster compose(const ClusterRequest& request);

/// "3,1,0": devices of a host by the numbers that its tools print. Throws UsageError naming `flag`: a number
/// beyond 65535 or a duplicate.
[[nodiscard]] std::vector<int> parse_device_list(const std::string& text, const std::string& flag);

/// Format of a text by its content; throws InvalidInput that says what was tried.
[[nodiscard]] SourceFormat detect_format(const std::string& text, const std::string& file);

/// `cluster` reduced to these devices in this order; ids become dense, `local` keeps the number tools print.
[[nodiscard]] Cluster select_devices(const Cluster& cluster, const std::vector<int>& ids);

/// `count` copies of all hosts side by side. NVLink domains, fabrics' leaves and names are copied with them.
/// Throws UsageError naming `flag` where that is more than a cluster may have.
[[nodiscard]] Cluster replicate(const Cluster& cluster, int count, const std::string& flag = "--nodes");

}  // namespace usp::topology

namespace usp {

template <>
struct WordTable<topology::SourceFormat> {
  using Format = topology::SourceFormat;
  static constexpr Word<Format> words[] = {
      {"auto", Format::automatic},        {"cluster", Format::cluster_json}, {"synthetic", Format::synthetic},
      {"nvidia-smi", Format::nvidia_smi}, {"nccl-xml", Format::nccl_xml},    {"slurm", Format::slurm}};
};

}  // namespace usp
