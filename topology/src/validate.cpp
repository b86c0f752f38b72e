// SPDX-License-Identifier: Apache-2.0
#include "usp/topology/validate.hpp"

#include "usp/base/error.hpp"
#include "usp/base/json_units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

namespace usp::topology {
namespace {

/// Collects what the checks need: the file for messages and the sizes that indices must stay below.
class Checker {
 public:
  Checker(const Cluster& cluster, std::string file) : cluster_(cluster), file_(std::move(file)) {}

  void run() {
    const auto count = [](const auto& list) { return static_cast<std::int64_t>(list.size()); };
    const std::string fault = oversize(
        {count(cluster_.nodes), count(cluster_.devices), count(cluster_.nics), count(cluster_.links)});
    need(fault.empty(), at(""), fault);
    specs();
    nodes();
    devices();
    nics();
    links();
    domains();
    fabric();
    curves();
  }

 private:
  /// A JSON pointer, put together only for a message: a cluster may have a million links.
  struct Pointer {
    const char* list;
    std::optional<std::size_t> index = std::nullopt;
    const char* key = nullptr;
    [[nodiscard]] std::string text() const {
      return fmt::format("/{}{}{}", list, index ? fmt::format("/{}", *index) : "",
                         key == nullptr ? "" : "/" + std::string(key));
    }
  };
  void need(bool holds, const Pointer& pointer, std::string_view problem) const {
    if (!holds) throw InvalidInput({file_, 0, pointer.text()}, std::string(problem));
  }
  static Pointer at(const char* list, std::optional<std::size_t> index = std::nullopt,
                    const char* key = nullptr) {
    return {list, index, key};
  }
  static bool inside(int index, std::size_t size) {
    return index >= 0 && static_cast<std::size_t>(index) < size;
  }

  /// A value exists exactly where its provenance is not unknown, and is within the bound of machines.
  void quantity(const Quantity& value, const Pointer& pointer, BoundedQuantity bound,
                FieldUnit unit = FieldUnit::si) const {
    origin(value, pointer);
    if (!value.known()) return;
    const std::string fault = beyond_machines(to_si(*value.value, unit), bound);
    need(fault.empty(), pointer, fault);
  }
  void byte_rate(const Quantity& value, const Pointer& pointer) const {
    quantity(value, pointer, BoundedQuantity::byte_rate, FieldUnit::gb_s);
  }
  void flop_rate(const Quantity& value, const Pointer& pointer) const {
    quantity(value, pointer, BoundedQuantity::flop_rate, FieldUnit::tflops);
  }
  void within(const Quantity& value, const Pointer& pointer, double least, double most) const {
    origin(value, pointer);
    need(!value.known() || (*value.value >= least && *value.value <= most), pointer,
         fmt::format("{:g} is not from {:g} to {:g}", value.value.value_or(0), least, most));
  }
  void origin(const Quantity& value, const Pointer& pointer) const {
    need(value.known() == (value.provenance != Provenance::unknown), pointer,
         "a value needs a provenance (measured, preset, guess), and unknown has no value");
    need(!value.known() || std::isfinite(*value.value), pointer, "the number is not finite");
  }

  void specs() const {
    for (std::size_t i = 0; i < cluster_.specs.size(); ++i) {
      const DeviceSpec& spec = cluster_.specs[i];
      within(spec.sm_count, at("specs", i, "sm_count"), 1, 1e5);
      within(spec.clock_hz, at("specs", i, "clock_hz"), 1e6, 1e11);
      within(spec.power_w, at("specs", i, "power_w"), 1, 1e5);
      flop_rate(spec.bf16_tflops, at("specs", i, "bf16_flop_per_s"));
      flop_rate(spec.fp16_tflops, at("specs", i, "fp16_flop_per_s"));
      flop_rate(spec.fp32_tflops, at("specs", i, "fp32_flop_per_s"));
      flop_rate(spec.fp8_tflops, at("specs", i, "fp8_flop_per_s"));
      quantity(spec.memory_bytes, at("specs", i, "memory_bytes"), BoundedQuantity::memory_bytes);
      byte_rate(spec.memory_gb_s, at("specs", i, "memory_bytes_per_s"));
    }
    need(cluster_.spec_of_device.size() == cluster_.devices.size(), at("devices"),
         "every device needs its spec");
    for (std::size_t i = 0; i < cluster_.spec_of_device.size(); ++i)
      need(inside(cluster_.spec_of_device[i], cluster_.specs.size()), at("devices", i, "spec"),
           "no such spec");
  }

  void nodes() const {
    for (std::size_t i = 0; i < cluster_.nodes.size(); ++i) {
      const Node& node = cluster_.nodes[i];
      need(node.id == static_cast<int>(i), at("nodes", i, "id"), "ids count from 0 without gaps");
      need(node.numa_count >= 0, at("nodes", i, "numa_count"), "must not be negative");
      quantity(node.host_memory_bytes, at("nodes", i, "host_memory_bytes"), BoundedQuantity::memory_bytes);
      byte_rate(node.host_memory_gb_s, at("nodes", i, "host_memory_bytes_per_s"));
      byte_rate(node.pcie_gb_s, at("nodes", i, "pcie_bytes_per_s"));
      byte_rate(node.numa_gb_s, at("nodes", i, "numa_bytes_per_s"));
    }
  }

  void devices() const {
    std::set<std::pair<int, int>> places;
    for (std::size_t i = 0; i < cluster_.devices.size(); ++i) {
      const Device& device = cluster_.devices[i];
      need(device.id == static_cast<int>(i), at("devices", i, "id"), "ids count from 0 without gaps");
      need(inside(device.node, cluster_.nodes.size()), at("devices", i, "node"), "no such node");
      need(device.local >= 0 && places.emplace(device.node, device.local).second, at("devices", i, "local"),
           "two devices of one host share this number");
      need(!device.numa || *device.numa >= 0, at("devices", i, "numa"), "must not be negative");
      need(device.nvlink_domain == -1 || inside(device.nvlink_domain, cluster_.domains.size()),
           at("devices", i, "nvlink_domain"), "no such domain");
      std::set<int> seen;
      for (int nic : device.nics)
        need(inside(nic, cluster_.nics.size()) && seen.insert(nic).second &&
                 cluster_.nics[static_cast<std::size_t>(nic)].node == device.node,
             at("devices", i, "nics"), "must name NICs of the device's own host, each once");
    }
  }

  void nics() const {
    for (std::size_t i = 0; i < cluster_.nics.size(); ++i) {
      const Nic& nic = cluster_.nics[i];
      need(nic.id == static_cast<int>(i), at("nics", i, "id"), "ids count from 0 without gaps");
      need(inside(nic.node, cluster_.nodes.size()), at("nics", i, "node"), "no such node");
      need(!nic.numa || *nic.numa >= 0, at("nics", i, "numa"), "must not be negative");
      byte_rate(nic.gb_s, at("nics", i, "bytes_per_s"));
    }
  }

  void links() const {
    for (std::size_t i = 0; i < cluster_.links.size(); ++i) {
      const Link& link = cluster_.links[i];
      need(inside(link.a, cluster_.devices.size()) && inside(link.b, cluster_.devices.size()), at("links", i),
           "no such device");
      need(link.a < link.b, at("links", i), "a must be less than b");
      if (i > 0) {
        const Link& before = cluster_.links[i - 1];
        need(std::pair(before.a, before.b) < std::pair(link.a, link.b), at("links", i),
             "not sorted by a and b");
      }
      const bool peer = link.kind == LinkKind::nvlink || link.kind == LinkKind::xgmi;
      need(link.lanes >= 0 && (peer || link.lanes == 0), at("links", i, "lanes"),
           "only NVLink and xGMI have lanes");
      const bool one_host = cluster_.devices[static_cast<std::size_t>(link.a)].node ==
                            cluster_.devices[static_cast<std::size_t>(link.b)].node;
      need(peer || one_host, at("links", i, "kind"), "a PCIe path cannot join two hosts");
      byte_rate(link.gb_s, at("links", i, "bytes_per_s"));
      need(!link.latency_s.known() || *link.latency_s.value > 0, at("links", i, "latency_s"),
           "the latency of a link is positive");
      quantity(link.latency_s, at("links", i, "latency_s"), BoundedQuantity::latency_s);
    }
  }

  void domains() const {
    std::size_t members = 0;
    for (std::size_t i = 0; i < cluster_.domains.size(); ++i) {
      const NvlinkDomain& domain = cluster_.domains[i];
      need(!domain.devices.empty() && std::is_sorted(domain.devices.begin(), domain.devices.end()) &&
               std::adjacent_find(domain.devices.begin(), domain.devices.end()) == domain.devices.end(),
           at("domains", i, "devices"), "must name devices, ascending, each once");
      for (int device : domain.devices)
        need(inside(device, cluster_.devices.size()) &&
                 cluster_.devices[static_cast<std::size_t>(device)].nvlink_domain == static_cast<int>(i),
             at("domains", i, "devices"), "a device here does not name this domain as its own");
      byte_rate(domain.gb_s, at("domains", i, "bytes_per_s"));
      members += domain.devices.size();
    }
    const auto named = std::count_if(cluster_.devices.begin(), cluster_.devices.end(),
                                     [](const Device& device) { return device.nvlink_domain >= 0; });
    need(members == static_cast<std::size_t>(named), at("domains"),
         "a device names a domain that does not list it");
  }

  void fabric() const {
    within(cluster_.fabric.oversubscription, at("fabric/oversubscription"), 1, max_oversubscription);
    quantity(cluster_.fabric.latency_s, at("fabric/latency_s"), BoundedQuantity::latency_s);
    std::set<int> seen;
    for (std::size_t i = 0; i < cluster_.fabric.leaves.size(); ++i)
      for (int node : cluster_.fabric.leaves[i])
        need(inside(node, cluster_.nodes.size()) && seen.insert(node).second, at("fabric/leaves", i),
             "must name nodes, each under one leaf");
    need(seen.empty() || seen.size() == cluster_.nodes.size(), at("fabric/leaves"),
         "every node needs its leaf");
  }

  void curves() const {
    for (std::size_t i = 0; i < cluster_.curves.size(); ++i) {
      const MeasuredCurve& curve = cluster_.curves[i];
      need(!curve.collective.empty() && curve.ranks >= 1 && curve.hosts >= 0, at("curves", i),
           "needs the name of a collective and its number of ranks");
      double last = -1;
      for (const CurvePoint& point : curve.points) {
        need(point.bytes > last && std::isfinite(point.bytes) && std::isfinite(point.time_s) &&
                 point.time_s > 0,
             at("curves", i, "points"), "sizes must ascend and times be positive");
        last = point.bytes;
      }
    }
  }

  const Cluster& cluster_;
  std::string file_;
};

}  // namespace

std::string oversize(const ClusterSize& size) {
  struct Limit {
    const char* name;
    std::int64_t count, most;
  };
  for (const auto& [name, count, most] :
       {Limit{"hosts", size.hosts, 1 << 16}, Limit{"devices", size.devices, 1 << 16},
        Limit{"NICs", size.nics, 1 << 18}, Limit{"links", size.links, 1 << 20}})
    if (count > most) return fmt::format("{} {}; the most is {}", count, name, most);
  return "";
}

void validate(const Cluster& cluster, const std::string& file) {
  Checker(cluster, file).run();
}

bool on_host_cores(const Cluster& cluster) {
  return !cluster.specs.empty() &&
         std::all_of(cluster.specs.begin(), cluster.specs.end(), [](const DeviceSpec& spec) {
           return spec.name == "thread" || spec.name.starts_with("cpu-");
         });
}

std::vector<std::vector<int>> islands(const Cluster& cluster) {
  std::vector<int> root(cluster.devices.size());
  std::iota(root.begin(), root.end(), 0);
  const auto find = [&](int x) {
    while (root[static_cast<std::size_t>(x)] != x) {
      int& above = root[static_cast<std::size_t>(x)];
      above = root[static_cast<std::size_t>(above)];  // halves the path: chains stay short
      x = above;
    }
    return x;
  };
  const auto join = [&](int a, int b) {
    const int x = find(a), y = find(b);
    root[static_cast<std::size_t>(std::max(x, y))] = std::min(x, y);
  };
  for (const Link& link : cluster.links)
    if (link.kind == LinkKind::nvlink || link.kind == LinkKind::xgmi) join(link.a, link.b);
  for (const NvlinkDomain& domain : cluster.domains)
    if (domain.switched)
      for (int device : domain.devices) join(domain.devices.front(), device);
  std::vector<std::vector<int>> result;
  std::vector<int> slot(root.size(), -1);
  for (int i = 0; i < static_cast<int>(root.size()); ++i) {
    const auto r = static_cast<std::size_t>(find(i));
    if (slot[r] < 0) {
      slot[r] = static_cast<int>(result.size());
      result.emplace_back();
    }
    result[static_cast<std::size_t>(slot[r])].push_back(i);
  }
  return result;
}

}  // namespace usp::topology
