// SPDX-License-Identifier: Apache-2.0
#include "cluster_flags.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"

#include <algorithm>
#include <utility>

namespace usp::cli {
namespace {

constexpr std::pair<const char*, SourceFormat> formats[] = {
    {"auto", SourceFormat::automatic},      {"cluster", SourceFormat::cluster_json},
    {"synthetic", SourceFormat::synthetic}, {"nvidia-smi", SourceFormat::nvidia_smi},
    {"nccl-xml", SourceFormat::nccl_xml},   {"slurm", SourceFormat::slurm}};

std::optional<double> rate(const std::string& text, const char* flag) {
  return text.empty() ? std::nullopt : std::optional<double>(parse_line_rate_gb_s(text, flag));
}

}  // namespace

ClusterRequest ClusterFlags::finish() const {
  ClusterRequest result = request;
  bool known = false;
  for (const auto& [name, value] : formats)
    if (format == name) {
      result.format = value;
      known = true;
    }
  if (!known)
    throw UsageError("--format: '" + format +
                     "' is not auto, cluster, synthetic, nvidia-smi, nccl-xml or slurm");
  if (!devices.empty()) result.devices = parse_device_list(devices, "--devices");
  result.pcie_gb_s = rate(pcie, "--pcie");
  result.nvlink_gb_s = rate(nvlink, "--nvlink");
  result.numa_gb_s = rate(numa, "--numa-bandwidth");
  return result;
}

std::shared_ptr<ClusterFlags> add_cluster_flags(CLI::App& verb, const std::string& source_option) {
  auto flags = std::make_shared<ClusterFlags>();
  constexpr const char* group = "Cluster";
  const auto option = [&](const char* name, auto& target, const char* help) {
    return verb.add_option(name, target, help)->group(group);
  };
  verb.add_option(source_option, flags->request.source,
                  "preset, cluster JSON, nvidia-smi topo -m text, NCCL topology XML, Slurm topology.conf, - "
                  "for stdin, "
                  "or a description such as 'node:4 nvswitch gpu:8(h100) nic:8(400G)'")
      ->required()
      ->type_name(input_file)
      ->group(source_option.rfind("--", 0) == 0 ? group : "Positionals");
  option("--format", flags->format, "how to read it: auto, cluster, synthetic, nvidia-smi, nccl-xml, slurm");
  option("--device", flags->request.device, "the card, e.g. h100-sxm: a topology text does not name it");
  option("--devices", flags->devices, "visible devices of every host, in this order, e.g. 3,1,0");
  option("--nodes", flags->request.nodes, "hosts like the one described")->check(within(1));
  option("--nic", flags->request.nic, "NICs per host and their rate, e.g. 8x400G; or the rate alone");
  option("--fabric", flags->request.fabric, "none, rail, fat_tree(RATIO) or fat_tree(RATIO,HOSTS_PER_LEAF)");
  option("--oversubscription", flags->request.oversubscription,
         "NIC bandwidth below a leaf over its uplinks, at least 1")
      ->check(within(1.0, 1e6));
  option("--slurm", flags->request.slurm, "Slurm topology.conf: the hosts and the switches above them")
      ->type_name(input_file);
  option("--curves", flags->request.curves, "nccl-tests output measured on this cluster; may be repeated")
      ->type_name(input_file);
  option("--pcie", flags->pcie, "one direction of a device's slot, e.g. 32GB/s");
  option("--nvlink", flags->nvlink, "one direction of all NVLinks of a device, e.g. 450GB/s");
  option("--numa-bandwidth", flags->numa, "one direction between two NUMA nodes of a host, e.g. 22GB/s");
  return flags;
}

Cluster load_cluster(const ClusterFlags& flags, const Invocation& invocation) {
  if (const auto& ratio = flags.request.oversubscription; ratio && !(*ratio >= 1 && *ratio < 1e6))
    throw UsageError("--oversubscription: a ratio of 1 or more is needed");
  Cluster cluster = compose(flags.finish());
  for (const std::string& text : cluster.notes) note(invocation, text);
  const bool named = std::any_of(cluster.specs.begin(), cluster.specs.end(),
                                 [](const DeviceSpec& spec) { return !spec.name.empty(); });
  if (!cluster.devices.empty() && !named)
    note(invocation, "the source names no card: a plan needs it, by --device");
  return cluster;
}

}  // namespace usp::cli
