// SPDX-License-Identifier: Apache-2.0
#include "cluster_flags.hpp"

#include "flag_group.hpp"

#include "usp/base/error.hpp"
#include "usp/planner/cluster_calibration.hpp"

namespace usp::cli {
namespace {

void add_rates(FlagGroup& group, topology::ClusterRequest& request) {
  group.parsed("--pcie", request.pcie_gb_s, "one direction of a device's slot, e.g. 32GB/s",
               parse_line_rate_gb_s);
  group.parsed("--nvlink", request.nvlink_gb_s, "one direction of all NVLinks of a device, e.g. 450GB/s",
               parse_line_rate_gb_s);
  group.parsed("--numa-bandwidth", request.numa_gb_s,
               "one direction between two NUMA nodes of a host, e.g. 22GB/s", parse_line_rate_gb_s);
}

}  // namespace

CLI::Option* add_cluster_flags(const Verb& verb, ClusterFlags& flags, const std::string& source_option) {
  constexpr const char* name = "Cluster";
  topology::ClusterRequest& request = flags.request;
  FlagGroup group(verb, name);
  CLI::Option* source =
      group
          .option(source_option, request.source,
                  "preset, cluster JSON, nvidia-smi topo -m text, NCCL topology XML, Slurm topology.conf, - "
                  "for stdin, "
                  "or a description such as 'node:4 nvswitch gpu:8(h100) nic:8(400G)'")
          ->required()
          ->type_name(input_file)
          ->group(source_option.rfind("--", 0) == 0 ? name : "Positionals");
  group.word("--format", request.format, "how to read it: " + word_choice<topology::SourceFormat>());
  group.option("--device", request.device, "the card, e.g. h100-sxm: a topology text does not name it");
  group.parsed("--devices", request.devices,
               "numbers of the visible devices of every host, in this order, e.g. 3,1,0; --gpus counts",
               topology::parse_device_list);
  group.number("--nodes", request.nodes, "hosts like the one described", 1);
  group.number("--gpus", request.gpus,
               "devices in all: whole hosts, or the first devices of one; --devices selects", 1);
  group.option("--nic", request.nic, "NICs per host and their rate, e.g. 8x400G; or the rate alone");
  group.option("--fabric", request.fabric, "none, rail, fat_tree(RATIO) or fat_tree(RATIO,HOSTS_PER_LEAF)");
  group.number("--oversubscription", request.oversubscription,
               "NIC bandwidth below a leaf over its uplinks, at least 1", 1.0,
               topology::max_oversubscription);
  group.option("--slurm", request.slurm, "Slurm topology.conf: the hosts and the switches above them")
      ->type_name(input_file);
  group.option(
      "--p2p", request.p2p,
      "copies between cards over PCIe without host memory: yes, no, or a file of nvidia-smi topo -p2p r");
  group.option("--curves", request.curves, "nccl-tests output measured on this cluster; may be repeated")
      ->type_name(input_file);
  add_rates(group, request);
  return source;
}

void add_calibration_flag(const Verb& verb, ClusterFlags& flags, const char* group,
                          const std::string& fallback) {
  FlagGroup(verb, group)
      .option("--calibration", flags.calibration,
              "calibration file or shipped calibration; default: the one " + fallback)
      ->type_name(input_file);
}

topology::Cluster load_cluster(const ClusterFlags& flags, const Invocation& invocation) {
  return usp::load_cluster(flags.request, note_sink(invocation));
}

void note_void_p2p(const ClusterFlags& flags, const topology::Cluster& cluster,
                   const Calibration& calibration, const Invocation& invocation) {
  if (const std::string text = void_p2p(flags.request, cluster, calibration); !text.empty())
    note(invocation, text);
}

NoteSink note_sink(const Invocation& invocation) {
  return [&invocation](const std::string& text) { note(invocation, text); };
}

}  // namespace usp::cli
