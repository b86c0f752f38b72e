// SPDX-License-Identifier: Apache-2.0
#include "usp/topology/compose.hpp"

#include "compose_parts.hpp"
#include "peer_access.hpp"
#include "reader_support.hpp"

#include "usp/base/env.hpp"
#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/base/presets.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"
#include "usp/topology/cluster_io.hpp"
#include "usp/topology/devices.hpp"
#include "usp/topology/nccl_xml.hpp"
#include "usp/topology/nvidia_smi.hpp"
#include "usp/topology/synthetic.hpp"
#include "usp/topology/text_front.hpp"
#include "usp/topology/validate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <set>

namespace usp::topology {
namespace {

bool looks_synthetic(const std::string& text) {
  return text.find("gpu:") != std::string::npos;
}

/// The text of the source, whatever names it; presets come back parsed.
struct Source {
  std::string file;
  std::string text;
  std::optional<Cluster> preset;
};

Source find_source(const ClusterRequest& request) {
  const std::string& name = request.source;
  if (name.empty())
    throw UsageError("no cluster is named; give a preset, a file or a description like 'gpu:8(h100)'");
  if (request.text) return {name, *request.text, std::nullopt};
  std::error_code ignored;
  if (name == "-" || std::filesystem::exists(name, ignored)) return {name, read_file(name), std::nullopt};
  if (request.format == SourceFormat::synthetic || looks_synthetic(name))
    return {"description", name, std::nullopt};
  if (auto preset = find_cluster_preset(name)) return {"preset:" + name, "", std::move(preset)};
  const std::vector<std::string> names = preset_names("clusters");
  const std::string near = nearest_name(name, names);
  throw InvalidInput(
      {name, 0, ""},
      "no such file, no preset of that name, and not a description like "
      "'node:4 nvswitch gpu:8(h100) nic:8(400G)'; " +
          (near.empty() ? "the presets are " + join(names, ", ") : fmt::format("did you mean '{}'?", near)));
}

Cluster read_as(SourceFormat format, const Source& source) {
  switch (format) {
    case SourceFormat::cluster_json:
      return read_cluster_json(source.text, source.file);
    case SourceFormat::synthetic:
      return read_synthetic(source.text, source.file);
    case SourceFormat::nvidia_smi:
      return read_nvidia_smi_topo(source.text, source.file);
    case SourceFormat::nccl_xml:
      return read_nccl_xml(source.text, source.file);
    case SourceFormat::slurm:
      return hosts_of_slurm(source.text, source.file);
    case SourceFormat::automatic:
      break;
  }
  throw InternalError("a source format has no reader");
}

/// The calibration that a cluster file names lies beside that file, unless it is shipped or its path is
/// whole.
void place_calibration(Cluster& cluster, const Source& source) {
  const std::filesystem::path named = cluster.calibration;
  std::error_code ignored;
  if (named.empty() || named.is_absolute() || !std::filesystem::exists(source.file, ignored)) return;
  if (is_shipped("calibrations", cluster.calibration)) return;
  const std::filesystem::path beside = std::filesystem::absolute(source.file).parent_path() / named;
  if (!std::filesystem::exists(beside, ignored))
    throw InvalidInput(
        {source.file, 0, "/calibration"},
        fmt::format("'{}' is no shipped calibration, and there is no {}; give the file's path as seen "
                    "from this file, or --calibration",
                    cluster.calibration, beside.lexically_normal().string()));
  cluster.calibration = beside.lexically_normal().string();
}

/// A quantity that the command line states.
Quantity stated(double value, const std::string& flag) {
  return {value, Provenance::preset, flag};
}

void check_once(const std::vector<int>& devices, const std::string& flag) {
  std::set<int> seen;
  for (const int device : devices)
    if (!seen.insert(device).second)
      throw UsageError(fmt::format("{}: duplicate device {}; name each device once", flag, device));
}

/// What to give for the devices that CUDA would show: those before the first entry that names none.
std::string visible_advice(const Cluster& cluster, const std::string& visible) {
  if (visible.find("GPU-") != std::string::npos || visible.find("MIG-") != std::string::npos)
    return "give --devices with the indices that nvidia-smi -L lists beside these UUIDs";
  std::set<std::string> known;
  for (const Device& device : cluster.devices) known.insert(std::to_string(device.local));
  std::vector<std::string> shown;
  const std::vector<std::string> entries = split(visible, ',');
  for (const std::string& entry : entries) {
    if (std::find(shown.begin(), shown.end(), trim(entry)) != shown.end())
      return fmt::format("it names device {} twice; give --devices with each once", trim(entry));
    if (known.count(trim(entry)) == 0) break;
    shown.push_back(trim(entry));
  }
  if (shown.empty()) return "CUDA would show none of these";
  const std::string list = join(shown, ",");
  if (shown.size() == entries.size())
    return fmt::format("give --devices {} to plan for these, in this order", list);
  return fmt::format("CUDA stops at '{}', which names no device: give --devices {} to plan for what it shows",
                     excerpt(trim(entries[shown.size()])), list);
}

/// Whether the variable of this shell is meant for the host that a text describes is not known.
void note_visible(Cluster& cluster) {
  const auto visible = environment("CUDA_VISIBLE_DEVICES");
  if (!visible) return;
  cluster.notes.push_back(fmt::format(
      "CUDA_VISIBLE_DEVICES is '{}' here and is not applied to the source's {}; {}", excerpt(*visible),
      counted(cluster.devices.size(), "device"), visible_advice(cluster, *visible)));
}

void apply_visible(Cluster& cluster, const std::vector<int>& visible) {
  if (visible.empty()) return;
  check_once(visible, "--devices");
  std::map<std::pair<int, int>, int> id_at;  // of host and number
  for (const Device& device : cluster.devices) id_at[{device.node, device.local}] = device.id;
  std::vector<int> ids;
  for (const Node& node : cluster.nodes)
    for (int local : visible) {
      const auto found = id_at.find({node.id, local});
      if (found == id_at.end())
        throw UsageError(fmt::format("--devices: host {} has no device {}", node.id, local));
      ids.push_back(found->second);
    }
  cluster = select_devices(cluster, ids);
}

void apply_nodes(Cluster& cluster, int wanted) {
  const int have = static_cast<int>(cluster.nodes.size());
  if (wanted < 1) throw UsageError("--nodes: at least one host is needed");
  if (have == 0 || wanted == have) return;
  if (wanted % have == 0) {
    cluster = replicate(cluster, wanted / have);
    return;
  }
  if (wanted > have)
    throw UsageError(fmt::format("--nodes: {} is no multiple of the {} that the source describes", wanted,
                                 counted(have, "host")));
  std::vector<int> ids;
  for (const Device& device : cluster.devices)
    if (device.node < wanted) ids.push_back(device.id);
  cluster = select_devices(cluster, ids);
}

/// "8x400G" or "400G".
void apply_nic(Cluster& cluster, const std::string& text) {
  const std::size_t cross = text.find_first_of("xX");
  const bool has_count = cross != std::string::npos && cross > 0 &&
                         std::all_of(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(cross),
                                     [](unsigned char c) { return std::isdigit(c) != 0; });
  const Quantity rate =
      stated(parse_line_rate_gb_s(has_count ? text.substr(cross + 1) : text, "--nic"), "--nic " + text);
  if (!has_count) {
    if (cluster.nics.empty())
      throw UsageError("--nic: the source names no NICs; say how many each host has, e.g. --nic 8x" + text);
    for (Nic& nic : cluster.nics) nic.gb_s = rate;
    return;
  }
  const std::int64_t count = parse_integer(text.substr(0, cross), "--nic");
  if (count < 1 || count > 1024) throw UsageError("--nic: a host has 1 to 1024 NICs");
  // Where the source shows that many NICs next to devices (a host also has others, for storage), their
  // affinity stays.
  std::vector<bool> near(cluster.nics.size(), false);
  for (const Device& device : cluster.devices)
    for (int nic : device.nics) near[static_cast<std::size_t>(nic)] = true;
  std::vector<std::int64_t> near_of(cluster.nodes.size(), 0), all_of(cluster.nodes.size(), 0);
  for (const Nic& nic : cluster.nics) {
    ++all_of[static_cast<std::size_t>(nic.node)];
    if (near[static_cast<std::size_t>(nic.id)]) ++near_of[static_cast<std::size_t>(nic.node)];
  }
  const auto is_count = [&](std::int64_t n) { return n == count; };
  const bool keep_near = std::all_of(near_of.begin(), near_of.end(), is_count);
  if (keep_near || std::all_of(all_of.begin(), all_of.end(), is_count)) {
    for (Nic& nic : cluster.nics)
      if (!keep_near || near[static_cast<std::size_t>(nic.id)]) nic.gb_s = rate;
    if (keep_near && !is_count(all_of.front()))
      cluster.notes.push_back(
          fmt::format("--nic {} is the rate of the {} nearest to devices; the other {} of a host stay", text,
                      counted(count, "NIC"), all_of.front() - count));
    return;
  }
  if (!cluster.nics.empty())
    cluster.notes.push_back(fmt::format(
        "--nic {} replaces the NICs of the source; they are dealt to the devices in order", text));
  const std::string fault = oversize({0, 0, static_cast<std::int64_t>(cluster.nodes.size()) * count, 0});
  if (!fault.empty()) throw UsageError("--nic: " + fault);
  deal_nics(cluster, static_cast<int>(count), rate);
}

void apply_rates(Cluster& cluster, const ClusterRequest& request) {
  for (Node& node : cluster.nodes) {
    if (request.pcie_gb_s) node.pcie_gb_s = stated(*request.pcie_gb_s, "--pcie");
    if (request.numa_gb_s) node.numa_gb_s = stated(*request.numa_gb_s, "--numa-bandwidth");
  }
  if (!request.nvlink_gb_s) return;
  if (cluster.domains.empty()) throw UsageError("--nvlink: the source shows no NVLink; drop the flag");
  std::vector<std::size_t> domain_of(cluster.devices.size(), cluster.domains.size());
  for (std::size_t d = 0; d < cluster.domains.size(); ++d)
    for (const int device : cluster.domains[d].devices) domain_of[static_cast<std::size_t>(device)] = d;
  const auto at = [&](int device) { return domain_of[static_cast<std::size_t>(device)]; };
  const auto inside = [&](const Link& link) {
    return link.lanes > 0 && at(link.a) == at(link.b) && at(link.a) < cluster.domains.size();
  };
  std::vector<int> lanes(cluster.devices.size(), 0), most(cluster.domains.size(), 0);
  for (const Link& link : cluster.links)
    if (inside(link))
      for (const int end : {link.a, link.b})
        most[at(end)] = std::max(most[at(end)], lanes[static_cast<std::size_t>(end)] += link.lanes);
  for (NvlinkDomain& domain : cluster.domains) domain.gb_s = stated(*request.nvlink_gb_s, "--nvlink");
  for (Link& link : cluster.links)
    if (inside(link))
      link.gb_s =
          stated(cluster.domains[at(link.a)].switched ? *request.nvlink_gb_s
                                                      : *request.nvlink_gb_s * link.lanes / most[at(link.a)],
                 "--nvlink");
}

void apply_fabric(Cluster& cluster, const ClusterRequest& request) {
  if (!request.fabric.empty())
    set_fabric(cluster.fabric, request.fabric, static_cast<int>(cluster.nodes.size()), "--fabric");
  if (!request.oversubscription) return;
  if (cluster.fabric.kind != FabricKind::rail && cluster.fabric.kind != FabricKind::fat_tree)
    throw UsageError(
        "--oversubscription: says nothing without a fabric; add --fabric fat_tree or --fabric rail");
  if (!(*request.oversubscription >= 1 && *request.oversubscription <= max_oversubscription))
    throw UsageError(fmt::format("--oversubscription: the ratio is 1 to {:g}", max_oversubscription));
  cluster.fabric.oversubscription = stated(*request.oversubscription, "--oversubscription");
}

/// What only cards have.
void refuse_card_flags(const Cluster& cluster, const ClusterRequest& request) {
  if (!on_host_cores(cluster)) return;
  const std::pair<const char*, bool> of_cards[] = {{"--device", !request.device.empty()},
                                                   {"--p2p", !request.p2p.empty()},
                                                   {"--pcie", request.pcie_gb_s.has_value()},
                                                   {"--nvlink", request.nvlink_gb_s.has_value()}};
  for (const auto& [flag, given] : of_cards)
    if (given)
      throw UsageError(
          fmt::format("{}: has no effect: the devices of {} are ranks on the cores of their hosts, not "
                      "cards; leave it out",
                      flag, cluster.name));
}

/// A number that may have been meant as a count.
void note_one_device(Cluster& cluster, const std::vector<int>& devices) {
  if (devices.size() == 1 && devices.front() > 0)
    cluster.notes.push_back(fmt::format(
        "--devices {0} is device number {0} of every host alone; --gpus {0} would count", devices.front()));
}

/// Cards of a module are always joined by NVLink or xGMI.
void note_missing_nvlink(Cluster& cluster) {
  if (!cluster.domains.empty() || cluster.devices.size() < 2 || cluster.specs.empty()) return;
  const std::string& card = cluster.specs.front().name;
  if (!card.ends_with("-sxm")) return;
  cluster.notes.push_back(fmt::format(
      "{} sits on NVLink, and the source names none: the devices of a host are taken to reach each other "
      "over PCIe; nvidia-smi topo -m shows NVLinks (topo -mp does not), a description says nvswitch",
      card));
}

/// So many devices in all.
void apply_gpus(Cluster& cluster, int wanted) {
  const auto hosts = static_cast<int>(cluster.nodes.size()),
             devices = static_cast<int>(cluster.devices.size());
  if (hosts == 0 || devices == 0 || wanted == devices) return;
  const int per_host = devices / hosts;
  if (devices % hosts == 0 && wanted % per_host == 0) return apply_nodes(cluster, wanted / per_host);
  if (wanted > per_host)
    throw UsageError(fmt::format(
        "--gpus {}: hosts have {}, and more than one host is taken whole; give {} or {}", wanted,
        counted(per_host, "device"), wanted / per_host * per_host, (wanted / per_host + 1) * per_host));
  std::vector<int> first;
  for (const Device& device : cluster.devices)
    if (device.node == cluster.devices.front().node && static_cast<int>(first.size()) < wanted)
      first.push_back(device.id);
  cluster = select_devices(cluster, first);
}

}  // namespace

std::vector<int> parse_device_list(const std::string& text, const std::string& flag) {
  std::vector<int> devices;
  for (const std::string& part : split(text, ',')) {
    if (const std::string uuid = trim(part); uuid.rfind("GPU-", 0) == 0 || uuid.rfind("MIG-", 0) == 0)
      throw UsageError(fmt::format(
          "{}: '{}' is a UUID, which no description of a host holds; give the index that nvidia-smi -L lists "
          "beside it",
          flag, uuid));
    const std::int64_t index = parse_integer(trim(part), flag);
    if (index < 0 || index > 65535) throw UsageError(fmt::format("{}: '{}' is no device index", flag, part));
    devices.push_back(static_cast<int>(index));
  }
  check_once(devices, flag);
  return devices;
}

SourceFormat detect_format(const std::string& raw, const std::string& file) {
  const std::string text = clean_text(raw, file).text;
  const std::string start = trim(std::string_view(text).substr(0, 4096));
  const bool json = !start.empty() && start.front() == '{';
  if (json) return SourceFormat::cluster_json;
  const bool xml = !start.empty() && start.front() == '<';
  if (xml) return SourceFormat::nccl_xml;
  std::vector<SourceFormat> found;
  const std::string small = lower(text);  // Slurm takes its keywords in any case
  if (small.find("switchname=") != std::string::npos || small.find("blockname=") != std::string::npos)
    found.push_back(SourceFormat::slurm);
  if (text.find("GPU0") != std::string::npos || text.find("GPU1") != std::string::npos)
    found.push_back(SourceFormat::nvidia_smi);
  if (looks_synthetic(text)) found.push_back(SourceFormat::synthetic);
  if (found.size() == 1) return found.front();
  if (start.find("# nThread") != std::string::npos || text.find("busbw") != std::string::npos)
    throw InvalidInput({file, 0, ""},
                       "this is nccl-tests output, which names no machine; give it with --curves");
  throw InvalidInput({file, 0, ""},
                     (found.empty() ? std::string("is none of") : "could be more than one of") +
                         " cluster JSON ('{'), NCCL topology XML ('<'), nvidia-smi topo -m (GPU0 ...), Slurm "
                         "topology.conf (SwitchName=), a description (gpu:8(h100)); say which with --format");
}

Cluster compose(const ClusterRequest& request) {
  Source source = find_source(request);
  Cluster cluster;
  if (source.preset) {
    cluster = std::move(*source.preset);
  } else {
    const SourceFormat format =
        request.format == SourceFormat::automatic ? detect_format(source.text, source.file) : request.format;
    cluster = read_as(format, source);
    if (format == SourceFormat::cluster_json && !request.text) place_calibration(cluster, source);
    if (request.devices.empty() && (format == SourceFormat::nvidia_smi || format == SourceFormat::nccl_xml))
      note_visible(cluster);
  }
  if (cluster.name.empty())
    cluster.name = source.file == "-" ? "stdin" : std::filesystem::path(source.file).stem().string();
  refuse_card_flags(cluster, request);
  apply_visible(cluster, request.devices);
  note_one_device(cluster, request.devices);
  if (!request.device.empty()) name_device(cluster, find_device(request.device, "--device"), source.file);
  if (!request.p2p.empty()) apply_peer_access(cluster, request.p2p, !request.devices.empty());
  if (request.nodes && request.gpus)
    throw UsageError("--nodes and --gpus both say how many devices there are; give one");
  if (request.nodes) apply_nodes(cluster, *request.nodes);
  if (request.gpus) apply_gpus(cluster, *request.gpus);
  if (!request.slurm.empty()) apply_slurm(cluster, read_file(request.slurm), request.slurm);
  if (!request.nic.empty()) apply_nic(cluster, request.nic);
  apply_rates(cluster, request);
  apply_fabric(cluster, request);
  note_missing_nvlink(cluster);
  for (const std::string& curves : request.curves) apply_curves(cluster, read_file(curves), curves);
  validate(cluster, source.file);
  return cluster;
}

}  // namespace usp::topology
