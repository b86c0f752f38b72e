// SPDX-License-Identifier: Apache-2.0
#include "measured_cluster.hpp"

#include "usp/schedule/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

namespace usp::measure {

topology::Quantity quantity(double value) {
  return {value, topology::Provenance::measured, source};
}

namespace {

/// "h200" of "NVIDIA H200", "a100-sxm4-80gb" of "NVIDIA A100-SXM4-80GB".
std::string card_word(const std::string& product) {
  std::string word;
  for (const char c : product)
    word += c == ' ' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  constexpr std::string_view maker = "nvidia-";
  return word.starts_with(maker) ? word.substr(maker.size()) : word;
}

double best_hop_gb_s(const CalibrationFile& content) {
  double best = 0;
  for (const HopCurve& curve : content.point_to_point)
    for (const HopCurve::Point& point : curve.points) best = std::max(best, point.gb_s);
  return best;
}

constexpr double slot_gb_s = 64;  ///< PCIe 5.0 x16: what no slot of today passes

/// Hosts and their devices, each of the one card.
topology::Cluster hosts_of(const Machine& machine, const topology::DeviceSpec& spec,
                           const topology::Quantity& pcie_gb_s) {
  topology::Cluster cluster;
  for (int host = 0; host < machine.host_count(); ++host) {
    const auto h = static_cast<std::size_t>(host);
    topology::Node node;
    node.id = host;
    node.name = machine.hosts[h];
    node.numa_count = 1;
    node.host_memory_bytes = quantity(machine.memory_bytes[h]);
    node.pcie_gb_s = node.numa_gb_s = pcie_gb_s;
    cluster.nodes.push_back(node);
  }
  cluster.specs = {spec};
  for (std::size_t rank = 0; rank < machine.host_of.size(); ++rank) {
    topology::Device device;
    device.id = static_cast<int>(rank);
    device.node = machine.host_of[rank];
    device.local = machine.local(device.id);
    device.numa = 0;
    cluster.devices.push_back(device);
    cluster.spec_of_device.push_back(0);
  }
  return cluster;
}

/// One rate is measured, of the kernels' type; the host's cores are taken to compute others as fast.
void set_rates(DType dtype, const topology::Quantity& measured, topology::DeviceSpec& spec) {
  const topology::Quantity other{
      measured.value, topology::Provenance::guess,
      fmt::format("as {}, the type that {} measured", word_of(dtype), measured.source)};
  spec.bf16_tflops = dtype == DType::bf16 ? measured : other;
  spec.fp16_tflops = dtype == DType::fp16 ? measured : other;
  spec.fp32_tflops = dtype == DType::fp32 ? measured : other;
}

/// The line of links, which a data sheet or a hop tells.
topology::Quantity line_of(const CalibrationFile::Links& links) {
  if (links.source == source) return quantity(links.gb_s);
  return {links.gb_s, topology::Provenance::preset, links.source};
}

/// All devices of a host behind one switch.
void join_by_nvlink(topology::Cluster& cluster, const topology::Quantity& gb_s) {
  for (const topology::Node& node : cluster.nodes) {
    topology::NvlinkDomain domain;
    domain.switched = true;
    domain.gb_s = gb_s;
    for (topology::Device& device : cluster.devices)
      if (device.node == node.id) {
        domain.devices.push_back(device.id);
        device.nvlink_domain = static_cast<int>(cluster.domains.size());
      }
    if (domain.devices.size() > 1)
      cluster.domains.push_back(domain);
    else
      for (const int id : domain.devices) cluster.devices[static_cast<std::size_t>(id)].nvlink_domain = -1;
  }
}

}  // namespace

const topology::DevicePreset* preset_of(const std::string& product) {
  const std::string word = card_word(product);
  const topology::DevicePreset* longest = nullptr;
  std::size_t length = 0;
  const auto try_name = [&](const topology::DevicePreset& preset, const std::string& name) {
    // A name is a whole run of words at the start: "h20" is not "h200".
    const bool starts = word.starts_with(name) && (word.size() == name.size() || word[name.size()] == '-');
    if (starts && name.size() > length) longest = &preset, length = name.size();
  };
  for (const topology::DevicePreset& preset : topology::device_presets()) {
    try_name(preset, preset.spec.name);
    for (const std::string& alias : preset.aliases) try_name(preset, alias);
  }
  return longest;
}

CalibrationFile::Device device_of_card(const Card& card) {
  CalibrationFile::Device device;
  device.name = card.info.name;
  device.sm_count = card.info.multiprocessors;
  device.clock_hz = card.state.clock_hz;
  device.power_w = card.state.power_w;
  device.source = "driver";
  if (card.state.memory_gb_s) device.memory_gb_s = *card.state.memory_gb_s;
  const topology::DevicePreset* const preset = preset_of(card.info.name);
  if (preset == nullptr) return device;
  const topology::DeviceSpec& spec = preset->spec;
  device.source = fmt::format("data sheet of {}; power limit: driver", spec.name);
  if (!spec.generation.empty()) device.generation = spec.generation;
  if (spec.clock_hz.known()) device.clock_hz = spec.clock_hz.value;
  if (!device.power_w) device.power_w = spec.power_w.value;
  if (spec.bf16_tflops.known()) device.bf16_tflops = *spec.bf16_tflops.value;
  if (spec.memory_gb_s.known()) device.memory_gb_s = *spec.memory_gb_s.value;
  return device;
}

std::string conditions_of(const Card& card) {
  std::string text = card.info.name;
  if (card.state.power_w) text += fmt::format(", {:.0f} W", *card.state.power_w);
  if (card.state.clock_hz) text += fmt::format(", {:.0f} MHz", *card.state.clock_hz * 1e-6);
  if (!card.state.driver.empty()) text += ", driver " + card.state.driver;
  return text;
}

CalibrationFile::Links links_of_card(const Card& card, const CalibrationFile& content) {
  const double best = best_hop_gb_s(content);
  const topology::DevicePreset* const preset = preset_of(card.info.name);
  const bool nvlink = card.state.nvlinks > 0 || best > slot_gb_s;
  if (preset != nullptr && nvlink && preset->lanes > 0 && preset->lane_gb_s.known()) {
    const int lanes = card.state.nvlinks > 0 ? card.state.nvlinks : preset->lanes;
    return {"nvswitch", lanes * *preset->lane_gb_s.value, fmt::format("{} NVLinks, data sheet", lanes)};
  }
  if (preset != nullptr && !nvlink && preset->pcie_gb_s.known())
    return {"pcie", *preset->pcie_gb_s.value, "data sheet of the slot"};
  return {nvlink ? "nvswitch" : "pcie", best > 0 ? best : slot_gb_s, best > 0 ? source : "PCIe 5.0 x16"};
}

topology::Cluster cluster_of_ranks(const Machine& machine, const CalibrationFile& calibration, DType dtype) {
  topology::DeviceSpec spec;
  spec.name = calibration.device.name;
  spec.sm_count = quantity(calibration.device.sm_count);
  set_rates(dtype, quantity(calibration.device.bf16_tflops), spec);
  spec.memory_gb_s = quantity(calibration.device.memory_gb_s);
  std::size_t most_ranks = 1;
  double memory = machine.memory_bytes.front();
  for (std::size_t host = 0; host < machine.ranks.size(); ++host) {
    most_ranks = std::max(most_ranks, machine.ranks[host].size());
    memory = std::min(memory, machine.memory_bytes[host]);
  }
  spec.memory_bytes = quantity(std::floor(memory / static_cast<double>(most_ranks)));
  return hosts_of(machine, spec, quantity(calibration.links->gb_s));
}

topology::Cluster cluster_of_cards(const Measured& measured, const CalibrationFile& calibration) {
  const Card& card = *measured.card;
  const topology::DevicePreset* const preset = preset_of(card.info.name);
  topology::DeviceSpec spec;
  if (preset != nullptr) spec = preset->spec;
  if (spec.name.empty()) spec.name = card.info.name;
  spec.sm_count = quantity(card.info.multiprocessors);
  spec.memory_bytes = quantity(static_cast<double>(card.info.memory_bytes));
  if (card.state.power_w) spec.power_w = quantity(*card.state.power_w);
  if (!spec.bf16_tflops.known())
    spec.bf16_tflops = spec.fp16_tflops = quantity(calibration.device.bf16_tflops);
  if (!spec.memory_gb_s.known()) spec.memory_gb_s = quantity(calibration.device.memory_gb_s);
  const bool nvlink = calibration.links->link_class == "nvswitch";
  const topology::Quantity line = line_of(*calibration.links);
  topology::Quantity slot{slot_gb_s, topology::Provenance::guess, "PCIe 5.0 x16"};
  if (preset != nullptr && preset->pcie_gb_s.known()) slot = preset->pcie_gb_s;
  topology::Cluster cluster = hosts_of(measured.machine, spec, nvlink ? slot : line);
  if (nvlink) join_by_nvlink(cluster, line);
  return cluster;
}

}  // namespace usp::measure
