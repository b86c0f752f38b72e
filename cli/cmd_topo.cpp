// SPDX-License-Identifier: Apache-2.0
#include "cluster_flags.hpp"
#include "flag_group.hpp"

#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/base/json_format.hpp"
#include "usp/base/json_units.hpp"
#include "usp/base/presets.hpp"
#include "usp/base/table.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"
#include "usp/topology/cluster_io.hpp"
#include "usp/topology/devices.hpp"
#include "usp/topology/validate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>

namespace usp::cli {
namespace {

std::string shown(const topology::Quantity& value, const std::string& text) {
  return value.known() ? text + " (" + topology::provenance_name(value.provenance) + ")" : "unknown";
}

std::string rate_shown(const topology::Quantity& gb_s, int digits = 0) {
  return shown(gb_s, format_byte_rate(gb_s.value.value_or(0) * 1e9, digits));
}

Json quantity_json(const topology::Quantity& value) {
  return {{"value", json_or_null(value.value)},
          {"provenance", topology::provenance_name(value.provenance)},
          {"source", value.source}};
}

Json string_or_null(const std::string& text) {
  return text.empty() ? Json(nullptr) : Json(text);
}

Json topo_json(const topology::Cluster& cluster) {
  Json json = json_header("usp.topo");
  json["name"] = cluster.name;
  json["devices"] = Json::array();
  for (const topology::Device& device : cluster.devices) {
    const topology::DeviceSpec& spec =
        cluster.specs[static_cast<std::size_t>(cluster.spec_of_device[static_cast<std::size_t>(device.id)])];
    json["devices"].push_back({{"id", device.id},
                               {"name", string_or_null(spec.name)},
                               {"numa", json_or_null(device.numa)},
                               {"node", device.node},
                               {"local", device.local},
                               {"nics", device.nics},
                               {"bf16_flop_per_s", si_json(spec.bf16_tflops.value, FieldUnit::tflops)},
                               {"memory_bytes", si_json(spec.memory_bytes.value, FieldUnit::si)}});
  }
  json["nics"] = Json::array();
  for (const topology::Nic& nic : cluster.nics)
    json["nics"].push_back({{"id", nic.id},
                            {"node", nic.node},
                            {"name", string_or_null(nic.name)},
                            {"numa", json_or_null(nic.numa)},
                            {"bytes_per_s", si_json(nic.gb_s.value, FieldUnit::gb_s)}});
  json["links"] = Json::array();
  for (const topology::Link& link : cluster.links)
    json["links"].push_back({{"a", link.a},
                             {"b", link.b},
                             {"kind", topology::link_kind_name(link.kind)},
                             {"lanes", link.lanes},
                             {"bytes_per_s", si_json(link.gb_s.value, FieldUnit::gb_s)}});
  json["islands"] = topology::islands(cluster);
  json["nodes"] = Json::array();
  for (const topology::Node& node : cluster.nodes)
    json["nodes"].push_back({{"id", node.id},
                             {"name", string_or_null(node.name)},
                             {"pcie_bytes_per_s", si_json(node.pcie_gb_s.value, FieldUnit::gb_s)}});
  json["fabric"] = {{"kind", topology::fabric_kind_name(cluster.fabric.kind)},
                    {"oversubscription", quantity_json(cluster.fabric.oversubscription)},
                    {"leaves", cluster.fabric.leaves}};
  json["calibration"] = string_or_null(cluster.calibration);
  json["curves"] = cluster.curves.size();
  json["notes"] = cluster.notes;
  return json;
}

/// 0,1,2,5 as "0-2,5".
std::string ranges(const std::vector<int>& ids) {
  std::string text;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::size_t end = i;
    while (end + 1 < ids.size() && ids[end + 1] == ids[end] + 1) ++end;
    text +=
        fmt::format("{}{}{}", text.empty() ? "" : ",", ids[i], end > i ? fmt::format("-{}", ids[end]) : "");
    i = end;
  }
  return text;
}

void print_devices(const topology::Cluster& cluster) {
  constexpr std::size_t most = 32;  // a rack is long enough to read
  TextTable table;
  const bool host_cores = topology::on_host_cores(cluster);  // they have no islands
  for (const char* header : {"device", "host", "local", "NUMA", "island", "nearest NICs"})
    if (!host_cores || header != std::string_view("island")) table.column(header);
  const auto groups = topology::islands(cluster);
  std::map<int, std::size_t> island;
  for (std::size_t i = 0; i < groups.size(); ++i)
    for (int device : groups[i]) island[device] = i;
  for (const topology::Device& device : cluster.devices) {
    if (static_cast<std::size_t>(device.id) >= most) break;
    std::vector<std::string> names;
    for (int id : device.nics) {
      const topology::Nic& nic = cluster.nics[static_cast<std::size_t>(id)];
      names.push_back(nic.name.empty() ? fmt::format("nic{}", id) : nic.name);
    }
    std::vector<std::string> row = {std::to_string(device.id), std::to_string(device.node),
                                    std::to_string(device.local),
                                    device.numa ? std::to_string(*device.numa) : "unknown"};
    if (!host_cores) row.push_back(std::to_string(island[device.id]));
    row.push_back(names.empty() ? "unknown" : join(names, " "));
    table.row(std::move(row));
  }
  std::cout << "\n" << table.str();
  if (cluster.devices.size() > most)
    std::cout << "... and " << counted(cluster.devices.size() - most, "more device")
              << " (--json lists all)\n";
}

void print_islands(const topology::Cluster& cluster) {
  if (topology::on_host_cores(cluster)) {
    std::cout << "\nranks on the cores of their hosts: data passes through host memory"
              << (cluster.nodes.size() > 1 ? ", and over the network between hosts\n" : "\n");
    return;
  }
  const auto groups = topology::islands(cluster);
  std::cout << "\n" << counted(groups.size(), "NVLink island") << "\n";
  for (std::size_t i = 0; i < groups.size() && i < 16; ++i) {
    std::cout << "  " << i << ": " << plural(static_cast<std::int64_t>(groups[i].size()), "device") << " "
              << ranges(groups[i]);
    const int id = cluster.devices[static_cast<std::size_t>(groups[i].front())].nvlink_domain;
    if (id < 0) {
      std::cout << ", PCIe only";
    } else {
      const topology::NvlinkDomain& domain = cluster.domains[static_cast<std::size_t>(id)];
      std::cout << (domain.switched ? ", switched, " : ", direct links, ") << rate_shown(domain.gb_s)
                << " per device and direction";
    }
    std::cout << "\n";
  }
  if (groups.size() > 16) std::cout << "  ... and " << groups.size() - 16 << " more\n";
  std::map<std::string, std::size_t> kinds;
  for (const topology::Link& link : cluster.links) {
    std::string name = topology::link_kind_name(link.kind);
    if (link.lanes > 0) name += fmt::format(" x{}", link.lanes);
    ++kinds[name];
  }
  std::vector<std::string> parts;
  for (const auto& [name, count] : kinds) parts.push_back(fmt::format("{} {}", count, name));
  if (!parts.empty()) std::cout << "  pairs: " << join(parts, ", ") << "\n";
}

/// Unknown quantities that pricing needs, and the flag that supplies each.
std::vector<std::string> unknowns(const topology::Cluster& cluster) {
  std::vector<std::string> result;
  const bool named = !cluster.specs.empty() && !cluster.specs.front().name.empty();
  if (cluster.devices.empty())
    result.emplace_back("devices: the source names none; describe a host and add --slurm");
  if (!cluster.devices.empty() && !named)
    result.emplace_back("card, its peaks, memory and link bandwidth: name it with --device");
  if (cluster.nodes.size() > 1 && cluster.nics.empty())
    result.emplace_back("NICs: give them with --nic, e.g. --nic 8x400G");
  const auto rate_unknown = [&](int nic) {
    return !cluster.nics[static_cast<std::size_t>(nic)].gb_s.known();
  };
  const bool any_near = std::any_of(cluster.devices.begin(), cluster.devices.end(),
                                    [](const topology::Device& device) { return !device.nics.empty(); });
  bool missing_rate = !any_near && !cluster.nics.empty() && rate_unknown(0);
  for (const topology::Device& device : cluster.devices)
    missing_rate = missing_rate || std::any_of(device.nics.begin(), device.nics.end(), rate_unknown);
  if (missing_rate) result.emplace_back("rate of the NICs: give it with --nic, e.g. --nic 400G");
  const bool pcie_pairs =
      std::any_of(cluster.links.begin(), cluster.links.end(), [](const topology::Link& link) {
        return link.kind != topology::LinkKind::nvlink && link.kind != topology::LinkKind::xgmi;
      });
  if (pcie_pairs && !cluster.specs.empty() && !cluster.specs.front().pcie_p2p)
    result.emplace_back(
        "PCIe peer-to-peer: a path is no proof of it; give nvidia-smi topo -p2p r with --p2p");
  if (cluster.nodes.size() > 1 && cluster.fabric.kind == topology::FabricKind::unknown)
    result.emplace_back(
        "fabric between the hosts: give it with --fabric; until then only NICs limit traffic");
  if (cluster.fabric.kind == topology::FabricKind::fat_tree && !cluster.fabric.oversubscription.known())
    result.emplace_back("uplinks of the leaf switches: give --oversubscription");
  return result;
}

void print_text(const topology::Cluster& cluster) {
  std::cout << cluster.name << ": " << counted(cluster.nodes.size(), "host") << ", "
            << counted(cluster.devices.size(), "device") << "\n";
  const bool host_cores = topology::on_host_cores(cluster);
  for (const topology::DeviceSpec& spec : cluster.specs) {
    std::cout << (host_cores ? "rank " : "card ") << (spec.name.empty() ? "unknown" : spec.name);
    if (!spec.name.empty())
      std::cout << ": bf16 "
                << shown(spec.bf16_tflops, format_flop_rate(spec.bf16_tflops.value.value_or(0) * 1e12))
                << ", memory "
                << (spec.memory_bytes.known() ? format_bytes(*spec.memory_bytes.value) : "unknown") << ", "
                << rate_shown(spec.memory_gb_s)
                << (spec.pcie_p2p == false ? ", PCIe peer-to-peer disabled: copies go through host memory"
                                           : "");
    std::cout << "\n";
  }
  if (!cluster.nodes.empty())
    std::cout << (host_cores ? "between ranks of a host " : "PCIe slot ")
              << rate_shown(cluster.nodes.front().pcie_gb_s) << "\n";
  if (!cluster.nics.empty())
    std::cout << counted(cluster.nics.size(), "NIC") << ", " << rate_shown(cluster.nics.front().gb_s, 1)
              << " each\n";
  std::cout << "fabric " << topology::fabric_kind_name(cluster.fabric.kind);
  if (cluster.fabric.oversubscription.known())
    std::cout << ", oversubscription " << format_fixed(*cluster.fabric.oversubscription.value, 2);
  if (!cluster.fabric.leaves.empty()) std::cout << ", " << cluster.fabric.leaves.size() << " leaf switches";
  std::cout << "\ncalibration " << (cluster.calibration.empty() ? "none" : cluster.calibration) << "\n";
  for (const topology::MeasuredCurve& curve : cluster.curves)
    std::cout << "measured " << curve.collective << " on " << curve.ranks << " ranks, " << curve.points.size()
              << " sizes, " << curve.source << "\n";
  if (!cluster.devices.empty()) {
    print_islands(cluster);
    print_devices(cluster);
  }
  const std::vector<std::string> missing = unknowns(cluster);
  if (!missing.empty()) std::cout << "\nunknown\n";
  for (const std::string& line : missing) std::cout << "  " << line << "\n";
}

void print_lists() {
  std::cout << "cluster presets: " << join(preset_names("clusters"), ", ") << "\ncards:";
  for (const topology::DevicePreset& preset : topology::device_presets()) {
    std::cout << " " << preset.spec.name;
    if (!preset.aliases.empty()) std::cout << " (" << join(preset.aliases, ", ") << ")";
  }
  std::cout << "\n";
}

struct TopoFlags {
  ClusterFlags cluster;
  std::string output;
  bool list = false;
};

/// --list goes with no other flag.
void check_list_alone(const CLI::App& verb) {
  for (const CLI::Option* option : verb.get_options())
    if (option->count() > 0 && !option->check_lname("list") && !option->check_lname("quiet"))
      throw UsageError("--list prints names alone; leave out " + option->get_name());
}

void show(const TopoFlags& flags, const Invocation& invocation) {
  if (flags.output == "-" && invocation.json)
    throw UsageError("-o - prints the cluster on stdout, where --json prints a view of it; give one of them");
  const topology::Cluster cluster = load_cluster(flags.cluster, invocation);
  if (!flags.output.empty()) write_file(flags.output, topology::write_cluster_json(cluster));
  if (flags.output == "-") return;
  if (invocation.json)
    std::cout << topo_json(cluster).dump(1, ' ', false, Json::error_handler_t::replace) << "\n";
  else
    print_text(cluster);
}

}  // namespace

void register_topo(CLI::App& app, Invocation& invocation) {
  const Verb verb =
      add_verb(app, invocation, "topo", "Show a machine or cluster and write it as cluster JSON",
               "  usp topo dgx-h100\n"
               "  nvidia-smi topo -m | usp topo - --device h100-sxm\n"
               "  usp topo node.txt --device h100-sxm --nodes 4 --nic 8x400G --fabric rail -o cluster.json\n"
               "  usp topo 'node:2 nvswitch gpu:8(a100) nic:8(200G) fabric:fat_tree(2)' --json\n"
               "  usp topo --list");
  auto flags = std::make_shared<TopoFlags>();
  add_cluster_flags(verb, flags->cluster, "FILE")->required(false);
  FlagGroup group(verb, plain_group);
  group
      .option("-o,--output", flags->output, "write the cluster JSON here (- for stdout, instead of the text)")
      ->type_name(output_file);
  group.flag("--list", flags->list, "names of the shipped clusters and cards");
  verb.runs([flags, topo = &verb.app, &invocation] {
    if (!flags->list) return show(*flags, invocation);
    check_list_alone(*topo);
    print_lists();
  });
}

}  // namespace usp::cli
