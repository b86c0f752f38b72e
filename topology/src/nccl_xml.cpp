// SPDX-License-Identifier: Apache-2.0
#include "usp/topology/nccl_xml.hpp"

#include "nccl_xml_machine.hpp"
#include "reader_support.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/topology/text_front.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

namespace usp::topology {
namespace {

using nccl::BufferSlot;
using nccl::Gpu;
using nccl::Machine;
using nccl::Network;
using nccl::NvLink;

LinkKind path_between(const BufferSlot& a, const BufferSlot& b) {
  if (a.cpu != b.cpu) return LinkKind::sys;
  const std::size_t shared = nccl::shared_switches(a, b);
  if (shared == 0) return LinkKind::phb;
  return shared == a.switches.size() && shared == b.switches.size() ? LinkKind::pix : LinkKind::pxb;
}

/// The slowest slot and uplink between two places of one <cpu>; unknown where one of them is.
Quantity path_gb_s(const BufferSlot& a, const BufferSlot& b) {
  if (a.cpu != b.cpu) return {};
  const std::size_t shared = nccl::shared_switches(a, b);
  Quantity slowest = a.slot_gb_s;
  const auto take = [&](const Quantity& part) {
    if (!part.known() || !slowest.known())
      slowest = {};
    else if (*part.value < *slowest.value)
      slowest = part;
  };
  take(b.slot_gb_s);
  for (std::size_t i = shared; i < a.uplinks.size(); ++i) take(a.uplinks[i]);
  for (std::size_t i = shared; i < b.uplinks.size(); ++i) take(b.uplinks[i]);
  return slowest;
}

class ClusterBuilder {
 public:
  ClusterBuilder(Machine machine, std::string file) : machine_(std::move(machine)), file_(std::move(file)) {}

  Cluster build() {
    for (auto& note : machine_.notes) cluster_.notes.push_back(std::move(note));
    add_node();
    add_devices();
    add_nics();
    collect_nvlinks();
    add_links();
    group_nvlink_domains(cluster_);
    for (NvlinkDomain& domain : cluster_.domains)
      domain.switched = std::all_of(domain.devices.begin(), domain.devices.end(),
                                    [&](int d) { return switch_lanes_[static_cast<std::size_t>(d)] > 0; });
    add_affinity();
    return std::move(cluster_);
  }

 private:
  void add_node() {
    Node node;
    std::set<int> numa;
    bool all_known = true;
    for (const auto& cpu : machine_.cpu_numa) {
      all_known = all_known && cpu.has_value();
      if (cpu) numa.insert(*cpu);
    }
    node.numa_count = all_known ? static_cast<int>(numa.size()) : 0;
    node.pcie_gb_s = machine_.gpus[0].place.slot_gb_s;
    for (const Gpu& gpu : machine_.gpus) {
      const Quantity& slot = gpu.place.slot_gb_s;
      if (!slot.known() || !node.pcie_gb_s.known())
        node.pcie_gb_s = {};
      else if (*slot.value < *node.pcie_gb_s.value)
        node.pcie_gb_s = slot;
    }
    cluster_.nodes.push_back(node);
    cluster_.fabric.kind = FabricKind::none;
    if (machine_.cpu_numa.size() == 1 && machine_.gpus.size() > 1)
      cluster_.notes.emplace_back("one <cpu> holds every device: the file does not tell NUMA nodes apart");
  }

  /// One unnamed card per compute capability.
  void add_devices() {
    std::map<int, int> spec_of;
    for (const Gpu& gpu : machine_.gpus) {
      Device device;
      device.id = static_cast<int>(cluster_.devices.size());
      device.local = gpu.dev.value_or(device.id);
      device.numa = machine_.cpu_numa[gpu.place.cpu];
      cluster_.devices.push_back(device);
      const auto [at, fresh] = spec_of.emplace(gpu.sm.value_or(0), static_cast<int>(spec_of.size()));
      if (fresh) cluster_.specs.emplace_back();
      cluster_.spec_of_device.push_back(at->second);
    }
    for (const auto& [sm, spec] : spec_of) {
      if (sm == 0) continue;
      std::vector<std::string> those;
      for (const Device& device : cluster_.devices)
        if (cluster_.spec_of_device[static_cast<std::size_t>(device.id)] == spec)
          those.push_back(std::to_string(device.local));
      cluster_.notes.push_back(fmt::format("the file states compute capability sm {}{}", sm,
                                           spec_of.size() > 1 ? " for device " + join(those, ", ") : ""));
    }
  }

  void add_nics() {
    for (const Network& network : machine_.networks) {
      Nic nic;
      nic.id = static_cast<int>(cluster_.nics.size());
      nic.name = network.name;
      nic.numa = machine_.cpu_numa[network.place.cpu];
      nic.gb_s = network.gb_s;
      cluster_.nics.push_back(nic);
    }
  }

  void collect_nvlinks() {
    const std::size_t count = machine_.gpus.size();
    switch_lanes_.assign(count, 0);
    std::map<std::string, std::size_t> by_bus;
    for (std::size_t i = 0; i < count; ++i) by_bus[machine_.gpus[i].bus_id] = i;
    bool any = false;
    for (std::size_t i = 0; i < count; ++i)
      for (const NvLink& link : machine_.gpus[i].links) {
        any = true;
        const auto peer = by_bus.find(link.target);
        if (link.to_switch) {
          switch_lanes_[i] += link.count;
        } else if (peer != by_bus.end() && peer->second != i) {
          const auto pair = std::make_pair(i, peer->second);
          direct_[pair] += link.count;
          line_[pair] = link.line;
          kind_[pair] = link.xgmi ? LinkKind::xgmi : LinkKind::nvlink;
        } else {
          throw InvalidInput(
              {file_, link.line, excerpt(link.target)},
              "a link to a bus id that no other device of the file has; dump the topology with every "
              "device of the host visible");
        }
      }
    for (const auto& [pair, lanes] : direct_) {
      const auto back = direct_.find({pair.second, pair.first});
      if (back == direct_.end() || back->second != lanes)
        throw InvalidInput({file_, line_[pair], machine_.gpus[pair.second].bus_id},
                           fmt::format("{} lanes to this device, but it states {} back", lanes,
                                       back == direct_.end() ? 0 : back->second));
    }
    if (!any)
      cluster_.notes.emplace_back(
          "the file has no <nvlink>: NCCL finds NVLinks when it runs, so the machine may have some; only "
          "PCIe is shown");
  }

  void add_links() {
    for (std::size_t a = 0; a < machine_.gpus.size(); ++a)
      for (std::size_t b = a + 1; b < machine_.gpus.size(); ++b) {
        Link link;
        link.a = static_cast<int>(a);
        link.b = static_cast<int>(b);
        const auto direct = direct_.find({a, b});
        if (direct != direct_.end()) {
          link.kind = kind_[{a, b}];
          link.lanes = link.kind == LinkKind::nvlink ? direct->second : 0;
        } else if (switch_lanes_[a] > 0 && switch_lanes_[b] > 0) {
          link.kind = LinkKind::nvlink;
          link.lanes = std::min(switch_lanes_[a], switch_lanes_[b]);
        } else {
          link.kind = path_between(machine_.gpus[a].place, machine_.gpus[b].place);
          link.gb_s = path_gb_s(machine_.gpus[a].place, machine_.gpus[b].place);
        }
        cluster_.links.push_back(link);
      }
  }

  void add_affinity() {
    std::vector<std::vector<LinkKind>> distance;
    for (const Gpu& gpu : machine_.gpus) {
      std::vector<LinkKind> row;
      for (const Network& network : machine_.networks) row.push_back(path_between(gpu.place, network.place));
      distance.push_back(row);
    }
    assign_nearest_nics(cluster_, distance);
  }

  using Pair = std::pair<std::size_t, std::size_t>;
  Machine machine_;
  std::string file_;
  std::map<Pair, int> direct_;  // lanes from the first device to the second
  std::map<Pair, long> line_;
  std::map<Pair, LinkKind> kind_;
  std::vector<int> switch_lanes_;
  Cluster cluster_;
};

}  // namespace

Cluster read_nccl_xml(const std::string& text, const std::string& file) {
  CleanText clean = clean_text(text, file);
  Machine machine = nccl::read_machine(xml::parse(clean.text, file), file);
  machine.notes.insert(machine.notes.begin(), clean.notes.begin(), clean.notes.end());
  return ClusterBuilder(std::move(machine), file).build();
}

}  // namespace usp::topology
