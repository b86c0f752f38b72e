// SPDX-License-Identifier: Apache-2.0
#include "nccl_xml_machine.hpp"

#include "reader_support.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <tuple>

namespace usp::topology::nccl {
namespace {

using xml::Element;

constexpr std::size_t max_of_host = 1024;  // devices, and NICs: every pair of them is looked at

bool starts_with(const std::string& text, std::string_view prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

bool contains(const Element& element, const char* name) {
  return element.name == name || std::any_of(element.children.begin(), element.children.end(),
                                             [&](const Element& child) { return contains(child, name); });
}

/// Payload share of the line rate in `gt_s`; 0 for a rate PCIe does not have.
double coding_share(double gt_s) {
  if (gt_s == 2.5 || gt_s == 5.0) return 8.0 / 10.0;
  if (gt_s == 8.0 || gt_s == 16.0 || gt_s == 32.0) return 128.0 / 130.0;
  return gt_s == 64.0 ? 242.0 / 256.0 : 0.0;
}

/// "32.0 GT/s PCIe" x "16" in GB/s; unknown when either says nothing.
Quantity pcie_gb_s(const std::string& speed, const std::string& width) {
  double gt_s = 0;
  const auto [end, error] = std::from_chars(speed.data(), speed.data() + speed.size(), gt_s);
  const auto lanes = small_number(width, 2);
  const std::string unit(end, speed.data() + speed.size());
  if (error != std::errc() || (unit != " GT/s" && unit != " GT/s PCIe") || !lanes || *lanes < 1 ||
      *lanes > 32)
    return {};
  const double share = coding_share(gt_s);
  if (share == 0.0) return {};
  return {gt_s * *lanes / 8 * share, Provenance::preset, fmt::format("link_speed {} x {}", speed, width)};
}

class MachineReader {
 public:
  MachineReader(const Element& root, std::string file)
      : root_(root),
        file_(std::move(file)),
        gpu_tags_(contains(root, "gpu")),
        net_tags_(contains(root, "net")) {}

  Machine read() {
    check_root();
    for (const Element& cpu : root_.children) read_cpu(cpu);
    if (machine_.gpus.empty())
      fail(root_, "system", "no <gpu> and no <pci> of class 0x0302 or 0x0300: no device");
    order();
    if (virtual_bridges_)
      machine_.notes.emplace_back(
          "bridges of bus id ffff:ff are written by hand for a virtual machine: switches and PCIe "
          "speeds are what its vendor states");
    note_ignored(machine_.notes, skipped_);
    return std::move(machine_);
  }

 private:
  [[noreturn]] void fail(const Element& at, const std::string& token, const std::string& problem) const {
    throw InvalidInput({file_, at.line, excerpt(token)}, problem);
  }
  const std::string& need(const Element& element, const char* key) const {
    const std::string* value = element.find(key);
    if (value == nullptr)
      fail(element, element.name, fmt::format("<{}> lacks the attribute {}", element.name, key));
    return *value;
  }
  std::optional<int> maybe_number(const Element& element, const char* key) const {
    const std::string* value = element.find(key);
    if (value == nullptr) return std::nullopt;
    const auto number = small_number(*value);
    if (!number) fail(element, *value, std::string(key) + " must be a whole number");
    return number;
  }
  [[noreturn]] void unexpected(const Element& child, const Element& parent) const {
    fail(child, child.name, fmt::format("unknown element inside <{}>", excerpt(parent.name)));
  }
  void skip(const Element& element, const std::string& why) {
    const std::string* bus = element.find("busid");
    skipped_.push_back(
        fmt::format("line {}: <{}> {}{}", element.line, element.name, bus ? excerpt(*bus) + " " : "", why));
  }

  void check_root() const {
    if (root_.name == "graphs" || root_.name == "graph")
      fail(root_, root_.name,
           "an NCCL graph file (NCCL_GRAPH_FILE): it lists the channels NCCL chose, not the machine; give "
           "the topology "
           "file that NCCL_TOPO_DUMP_FILE writes");
    if (root_.name != "system") fail(root_, root_.name, "not an NCCL topology file, whose root is <system>");
    const std::string& version = need(root_, "version");
    if (version != "1" && version != "2")  // NCCL writes 1, RCCL 2; the elements are the same
      fail(root_, version, "version of the topology format is neither NCCL's 1 nor RCCL's 2");
  }

  void read_cpu(const Element& cpu) {
    if (cpu.name != "cpu") unexpected(cpu, root_);
    if (const std::string* host = cpu.find("host_hash")) {
      if (!host_.empty() && host_ != *host)
        fail(cpu, *host, "a second host; give the topology file of one host and a node count");
      host_ = *host;
    }
    BufferSlot place;
    place.cpu = machine_.cpu_numa.size();
    const std::string& numa = need(cpu, "numaid");
    const auto id = small_number(numa, 4);
    if (!id && numa != "-1") fail(cpu, numa, "numaid must be a whole number, or -1 where there is none");
    machine_.cpu_numa.push_back(id);
    for (const Element& child : cpu.children) {
      if (child.name == "pci")
        read_pci(child, place);
      else if (child.name == "nic")
        read_nic(child, "", place);
      else
        unexpected(child, cpu);
    }
  }

  void read_pci(const Element& pci, const BufferSlot& parent) {
    const std::string bus = lower(need(pci, "busid"));
    const std::string kind = lower(need(pci, "class"));
    if (kind.size() < 6 || !starts_with(kind, "0x") ||
        kind.find_first_not_of("0123456789abcdef", 2) != std::string::npos)
      fail(pci, kind, "class must be a hexadecimal number of four digits or six, like 0x030200");
    if (bus.empty() || bus.find_first_not_of("0123456789abcdef:.") != std::string::npos)
      fail(pci, bus, "busid must be written like 0000:10:1c.0");
    if (!buses_.insert(bus).second) fail(pci, bus, "two elements have this bus id");
    virtual_bridges_ = virtual_bridges_ || starts_with(bus, "ffff:ff");
    BufferSlot place = parent;
    place.slot_gb_s = slot_speed(pci);
    const bool has_pci = std::any_of(pci.children.begin(), pci.children.end(),
                                     [](const Element& child) { return child.name == "pci"; });
    if (starts_with(kind, "0x0604") || has_pci) {
      place.switches.push_back(++switches_);
      place.uplinks.push_back(place.slot_gb_s);
    }
    bool tagged = false;
    for (const Element& child : pci.children) {
      if (child.name == "pci")
        read_pci(child, place);
      else if (child.name == "nic")
        tagged = read_nic(child, bus, place) || tagged;
      else if (child.name == "gpu" && !tagged)
        tagged = read_gpu(child, bus, place);
      else
        unexpected(child, pci);
    }
    if (!tagged && !starts_with(kind, "0x0604")) read_untagged(pci, bus, kind, place);
  }

  /// A leaf that only its PCI class describes.
  void read_untagged(const Element& pci, const std::string& bus, const std::string& kind,
                     const BufferSlot& place) {
    const bool display = starts_with(kind, "0x0302") || starts_with(kind, "0x0300");
    if (display && !gpu_tags_) {
      machine_.gpus.push_back({bus, std::nullopt, std::nullopt, place, {}});
    } else if (starts_with(kind, "0x02") && !net_tags_) {
      Network network;
      network.bus_id = bus;
      network.place = place;
      machine_.networks.push_back(network);
    } else if (display) {
      skip(pci, "is of a device class but has no <gpu>, as others have: not counted");
    } else if (starts_with(kind, "0x02")) {
      skip(pci, "is of a network class but has no <net>, as others have: not counted");
    } else {
      skip(pci, fmt::format("of class {} is neither device, NIC nor bridge: not counted", kind));
    }
  }

  Quantity slot_speed(const Element& pci) {
    const std::string* speed = pci.find("link_speed");
    const std::string* width = pci.find("link_width");
    if (speed == nullptr || width == nullptr) return {};
    Quantity known = pcie_gb_s(*speed, *width);
    if (!known.known())
      skip(pci, fmt::format("link_speed '{}' x '{}' is no PCIe speed: unknown", excerpt(*speed, 24),
                            excerpt(*width, 8)));
    return known;
  }

  bool read_gpu(const Element& tag, const std::string& bus, const BufferSlot& place) {
    Gpu gpu{bus, maybe_number(tag, "dev"), maybe_number(tag, "sm"), place, {}};
    if (!gpu.dev) fail(tag, "gpu", "<gpu> lacks the attribute dev");
    for (const Element& child : tag.children) {
      if (child.name == "nvlink" || child.name == "xgmi")
        gpu.links.push_back(read_link(child));
      else if (child.name == "c2c")
        skip(child, "joins a device to its CPU: not shown as a link between devices");
      else
        unexpected(child, tag);
    }
    machine_.gpus.push_back(gpu);
    return true;
  }

  [[nodiscard]] NvLink read_link(const Element& element) const {
    NvLink link;
    link.target = lower(need(element, "target"));
    link.xgmi = element.name == "xgmi";
    link.line = element.line;
    const std::string& count = need(element, "count");
    const auto lanes = small_number(count, 3);
    if (!lanes || *lanes < 1) fail(element, count, "count must be a whole number from 1 to 999");
    link.count = *lanes;
    // tclass is the PCI class of the far end: 0x0680 NVSwitch (0x068001 an IBM POWER processor), 0x03 a
    // device.
    const std::string far = lower(need(element, "tclass"));
    link.to_switch = starts_with(far, "0x0680") && far != "0x068001";
    if (!link.to_switch && !starts_with(far, "0x03") && !starts_with(far, "0x12"))
      fail(element, far, "tclass is neither a device (0x03) nor an NVSwitch (0x0680)");
    return link;
  }

  /// True when the <nic> holds a <net>; an empty one falls back to the PCI class.
  bool read_nic(const Element& nic, const std::string& bus, const BufferSlot& place) {
    for (const Element& net : nic.children) {
      if (net.name != "net") unexpected(net, nic);
      Network network;
      network.bus_id = bus;
      network.dev = maybe_number(net, "dev");
      network.place = place;
      if (const std::string* name = net.find("name")) network.name = excerpt(*name);
      if (const std::string* speed = net.find("speed")) {
        const auto megabits = small_number(*speed, 9);
        if (!megabits && *speed != "-1") fail(net, *speed, "speed must be a whole number, in Mb/s");
        if (megabits && *megabits > 0)
          network.gb_s = {*megabits / 8000.0, Provenance::preset, fmt::format("net speed {} Mb/s", *speed)};
      }
      machine_.networks.push_back(network);
    }
    return !nic.children.empty();
  }

  void order() {
    auto& gpus = machine_.gpus;
    std::sort(gpus.begin(), gpus.end(), [](const Gpu& a, const Gpu& b) {
      return std::tie(a.dev, a.bus_id) < std::tie(b.dev, b.bus_id);
    });
    for (const auto& [name, count] :
         {std::pair("gpu", gpus.size()), std::pair("net", machine_.networks.size())})
      if (count > max_of_host)
        fail(root_, name, fmt::format("{} of them; a host has at most {}", count, max_of_host));
    for (std::size_t i = 1; i < gpus.size(); ++i)
      if (gpus[i].dev && gpus[i].dev == gpus[i - 1].dev)
        fail(root_, fmt::format("dev={}", *gpus[i].dev), "two <gpu> have this number");
    std::stable_sort(machine_.networks.begin(), machine_.networks.end(),
                     [](const Network& a, const Network& b) {
                       if (a.dev.has_value() != b.dev.has_value()) return a.dev.has_value();
                       return a.dev ? *a.dev < *b.dev : a.bus_id < b.bus_id;
                     });
    if (!gpu_tags_)
      machine_.notes.emplace_back(
          "the file has no <gpu>: devices are taken by PCI class, in order of bus id");
    if (!net_tags_ && !machine_.networks.empty())
      machine_.notes.emplace_back(
          "the file has no <net>: NICs are taken by PCI class, in order of bus id, and the file states no "
          "speed");
  }

  const Element& root_;
  std::string file_;
  bool gpu_tags_;
  bool net_tags_;
  bool virtual_bridges_ = false;
  int switches_ = 0;
  std::string host_;
  std::set<std::string> buses_;
  std::vector<std::string> skipped_;
  Machine machine_;
};

}  // namespace

std::size_t shared_switches(const BufferSlot& a, const BufferSlot& b) {
  std::size_t shared = 0;
  while (shared < std::min(a.switches.size(), b.switches.size()) && a.switches[shared] == b.switches[shared])
    ++shared;
  return shared;
}

Machine read_machine(const Element& root, const std::string& file) {
  return MachineReader(root, file).read();
}

}  // namespace usp::topology::nccl
