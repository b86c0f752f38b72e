// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/cluster_calibration.hpp"

#include "usp/base/error.hpp"
#include "usp/base/presets.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/gemm.hpp"
#include "usp/topology/devices.hpp"
#include "usp/topology/validate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

namespace usp {
namespace {

/// Least known value over the cards of a cluster; a card without it is an error.
double min_of(const topology::Cluster& cluster, const topology::Quantity topology::DeviceSpec::*member,
              const char* what) {
  double least = std::numeric_limits<double>::infinity();
  for (const topology::DeviceSpec& spec : cluster.specs) {
    if ((spec.*member).known()) {
      least = std::min(least, *(spec.*member).value);
      continue;
    }
    const auto& known = topology::device_presets();
    const bool preset = std::any_of(known.begin(), known.end(),
                                    [&](const auto& card) { return card.spec.name == spec.name; });
    throw MissingValue({cluster.name, 0, spec.name.empty() ? "the card" : spec.name}, what,
                       preset
                           ? "its data sheet states none, so that it is not priced; name a card that has one "
                             "with --device"
                           : "name the card with --device");
  }
  if (!std::isfinite(least))
    throw MissingValue({cluster.name, 0, "the card"}, what, "name the card with --device");
  return least;
}

double link_gb_s(const topology::Cluster& cluster) {
  double least = std::numeric_limits<double>::infinity();
  for (const topology::Device& device : cluster.devices) {
    const topology::Node& node = cluster.nodes[static_cast<std::size_t>(device.node)];
    const topology::NvlinkDomain* domain =
        device.nvlink_domain < 0 ? nullptr : &cluster.domains[static_cast<std::size_t>(device.nvlink_domain)];
    // A bridge between two cards does not carry a group of eight: only a switch is the link of a device.
    const topology::Quantity& link = domain != nullptr && domain->switched ? domain->gb_s : node.pcie_gb_s;
    if (!link.known())
      throw MissingValue({cluster.name, 0, fmt::format("device {}", device.id)}, "the link bandwidth",
                         "name the card with --device, or give --nvlink or --pcie");
    least = std::min(least, *link.value);
  }
  return least;
}

std::optional<Collective> collective_named(const std::string& name) {
  for (const Collective c :
       {Collective::alltoall, Collective::all_gather, Collective::reduce_scatter, Collective::all_reduce})
    if (name == word_of(c)) return c;
  return std::nullopt;
}

/// Whether a host has devices that no NVSwitch joins.
bool has_pcie_pairs(const topology::Cluster& cluster) {
  std::map<int, int> first;  // per host, the NVLink domain of its first device
  for (const topology::Device& device : cluster.devices) {
    const auto [at, fresh] = first.emplace(device.node, device.nvlink_domain);
    if (fresh) continue;
    const bool joined = device.nvlink_domain >= 0 && device.nvlink_domain == at->second &&
                        cluster.domains[static_cast<std::size_t>(device.nvlink_domain)].switched;
    if (!joined) return true;
  }
  return false;
}

/// Curves of one host; those that span hosts mix two kinds of link and stay unused, which the report says.
void use_own_curves(const topology::Cluster& cluster, Calibration& calibration) {
  std::vector<CollectiveRow> rows;
  std::vector<PeerTransferSample> hops;
  std::string source;
  for (const topology::MeasuredCurve& curve : cluster.curves) {
    const std::optional<Collective> operation = collective_named(curve.collective);
    const bool hop = curve.collective == "sendrecv" && curve.points.size() > 1;
    const bool used = curve.hosts <= 1 && curve.ranks >= 2 && (operation || hop);
    for (const topology::CurvePoint& point : curve.points) {
      if (!used || point.bytes <= 0 || point.time_s <= 0) continue;
      if (operation)
        rows.push_back({*operation, curve.ranks, point.bytes, point.time_s});
      else
        hops.push_back({Transport::nccl, point.bytes, point.time_s, curve.ranks});
    }
    calibration.sources.push_back(
        {fmt::format("{}{} on {} ranks", used ? "" : "not used: ", curve.collective, curve.ranks),
         curve.source, "own measurement", "nccl-tests",
         used ? "" : "only curves of one host and of a known operation are used"});
    if (used && source.find(curve.source) == std::string::npos)
      source += (source.empty() ? "" : ", ") + curve.source;
  }
  if (rows.empty() && hops.empty()) return;
  if (calibration.pcie) calibration.pcie = calibration.pcie->with(rows, hops, source);
  const bool only_pcie = calibration.pcie && cluster.domains.empty();
  if (!calibration.pcie || only_pcie) calibration.comm = calibration.comm.with(rows, hops, source);
}

/// Hosts of PCIe cards with the same slots have been measured ten times apart (peer-to-peer, switches,
/// sockets): a factor of four each way. NVSwitch machines of other lane counts differ by NCCL's channels.
constexpr double pcie_band = 3, nvswitch_band = 0.25;
constexpr double same_links = 0.05;

bool measured_here(const topology::Cluster& cluster, const Calibration& calibration) {
  return !calibration.cluster.empty() && calibration.cluster == cluster.name;
}

/// The network, as it was measured: no more hosts, and no other NICs than were found.
bool network_measured_here(const topology::Cluster& cluster, const Calibration& calibration) {
  std::size_t hosts = 0;
  for (const NetworkRates::Curve& curve : calibration.network.curves)
    hosts = std::max(hosts, static_cast<std::size_t>(curve.key.hosts));
  const bool own_nics = std::all_of(cluster.nics.begin(), cluster.nics.end(), [](const topology::Nic& nic) {
    return nic.gb_s.provenance == topology::Provenance::measured;
  });
  return measured_here(cluster, calibration) && own_nics && cluster.nodes.size() <= hosts;
}

/// The shipped calibration whose links of a class have the nearest line rate.
const Calibration& lender_of(const std::string& link_class, double gb_s) {
  static const std::vector<Calibration> shipped = [] {
    std::vector<Calibration> all;
    for (const std::string& name : preset_names("calibrations")) all.push_back(load_calibration(name));
    return all;
  }();
  const Calibration* nearest = nullptr;
  const auto distance = [&](const Calibration& c) { return std::abs(std::log(c.link_gb_s / gb_s)); };
  for (const Calibration& c : shipped)
    if (c.link_class == link_class && (nearest == nullptr || distance(c) < distance(*nearest))) nearest = &c;
  expects(nearest != nullptr, "a calibration of each class of links is shipped");
  return *nearest;
}

/// Least rate of the NVLink domains' devices; 0: there are none.
double nvlink_gb_s(const topology::Cluster& cluster) {
  double least = 0;
  for (const topology::NvlinkDomain& domain : cluster.domains)
    if (domain.gb_s.known() && (least == 0 || *domain.gb_s.value < least)) least = *domain.gb_s.value;
  return least;
}

/// The card of devices.json that a calibration was measured on.
std::string lender_card(const Calibration& calibration) {
  for (const topology::DevicePreset& preset : topology::device_presets())
    if (preset.calibration == calibration.name && preset.spec.sm_count.known() &&
        static_cast<int>(*preset.spec.sm_count.value) == calibration.kernel.data().sm_count)
      return preset.spec.name;
  return "";
}

/// Curves of links come from their class, not from the card: another machine's, scaled by line rate, wherever
/// the calibration of the kernels ran over links of another kind or rate, or over none.
void choose_links(const topology::Cluster& cluster, Calibration& calibration) {
  // One of kernels alone, such as of a single GPU, holds no curves, on its own cluster too.
  const bool of_cards = calibration.link_class != host_links && !topology::on_host_cores(cluster);
  const bool kernels_alone = of_cards && !calibration.comm.has(Collective::alltoall);
  if (!kernels_alone && (calibration.link_class.empty() || measured_here(cluster, calibration))) return;
  if (calibration.link_class ==
      host_links) {  // of other hosts: what memory and cores make of messages differs
    calibration.link_band = pcie_band;
    calibration.link_lender = calibration.name;
    calibration.comm = calibration.comm.borrowed(1, pcie_band);
    return;
  }
  const TransferModel own = calibration.comm;
  const topology::DeviceSpec& card = cluster.specs.front();
  const auto curves = [&](const char* link_class, double gb_s, double always_band) {
    const Calibration* from = &calibration;
    if (calibration.link_class != link_class || kernels_alone) from = &lender_of(link_class, gb_s);
    const double ratio = gb_s / from->link_gb_s;
    const bool same = from == &calibration && std::abs(ratio - 1) <= same_links;
    const double band = std::max(always_band, same ? 0 : nvswitch_band);
    calibration.link_band = std::max(calibration.link_band, band);
    if (band > 0) calibration.link_lender = from->name;
    const TransferModel& model = from == &calibration ? own : from->comm;
    if (band == 0) return model;
    TransferModel scaled = model.borrowed(same ? 1 : ratio, band);
    // The host of another card: nothing but its slots is known of it.
    const bool stranger = !same || card.name != lender_card(*from);
    if (from->link_class != "pcie" || !stranger) return scaled;
    calibration.asks_p2p = true;
    return scaled.on_unknown_host(card.pcie_p2p);
  };
  const double nvlink = nvlink_gb_s(cluster);
  double slot = 0;
  for (const topology::Node& node : cluster.nodes)
    if (node.pcie_gb_s.known() && (slot == 0 || *node.pcie_gb_s.value < slot)) slot = *node.pcie_gb_s.value;
  std::optional<TransferModel> fast, slow;
  if (nvlink > 0) fast = curves("nvswitch", nvlink, 0);
  if (slot > 0 && has_pcie_pairs(cluster)) slow = curves("pcie", slot, pcie_band);
  if (slow) calibration.pcie = *slow;
  if (fast)
    calibration.comm = *fast;
  else if (slow)
    calibration.comm = *slow;
}

/// Cards that a table or their links name; the cores of hosts are described as devices too.
bool has_cards(const topology::Cluster& cluster) {
  if (!cluster.domains.empty()) return true;
  const std::vector<topology::DevicePreset>& known = topology::device_presets();
  return std::any_of(cluster.specs.begin(), cluster.specs.end(), [&](const topology::DeviceSpec& spec) {
    return !spec.generation.empty() || std::any_of(known.begin(), known.end(), [&](const auto& preset) {
      return preset.spec.name == spec.name;
    });
  });
}

/// The same of the calibration that the cluster itself names.
void refuse_own_class(const topology::Cluster& cluster, const Calibration& calibration) {
  if (calibration.link_class != host_links || !has_cards(cluster)) return;
  throw InvalidInput(
      {cluster.name, 0, "/calibration"},
      fmt::format("{} was measured on the cores of a host ({}), which tell nothing of the {} of "
                  "this cluster; name one of its card",
                  calibration.name, calibration.device, cluster.specs.front().name));
}

/// Kernels of a host's cores say nothing of a card's, nor those of a card of cores.
void refuse_other_class(const topology::Cluster& cluster, const Calibration& calibration) {
  const bool of_host = calibration.link_class == host_links;
  const std::string& device = cluster.specs.front().name;
  if (of_host && has_cards(cluster))
    throw UsageError(fmt::format(
        "--calibration: {} was measured on the cores of a host ({}), which tell nothing of the {} of {}; {}",
        calibration.name, calibration.device, device, cluster.name,
        cluster.calibration.empty() ? "leave it out for data-sheet rates"
                                    : fmt::format("leave it out for {}", cluster.calibration)));
  if (of_host || cluster.calibration.empty()) return;
  if (load_calibration(cluster.calibration).link_class == host_links)
    throw UsageError(
        fmt::format("--calibration: {} was measured on {}, which tells nothing of the cores of hosts of {} "
                    "({}); leave it out "
                    "for {}",
                    calibration.name, calibration.device, cluster.name, device, cluster.calibration));
}

constexpr double same_card = 0.02;  // data sheets round

/// Says so where a calibration is asked for by name and is of another card: its links are taken as they are.
void name_other_card(const topology::Cluster& cluster, const std::string& asked, Calibration& calibration) {
  if (measured_here(cluster, calibration)) return;
  const auto differs = [](double a, double b) { return std::abs(a / b - 1) > same_card; };
  const bool shipped = asked == calibration.name;
  const bool other = (shipped && !cluster.calibration.empty() && asked != cluster.calibration) ||
                     differs(min_of(cluster, &topology::DeviceSpec::bf16_tflops, "bf16 peak"),
                             calibration.device_bf16_tflops) ||
                     differs(min_of(cluster, &topology::DeviceSpec::memory_gb_s, "memory bandwidth"),
                             calibration.device_memory_gb_s);
  if (!other) return;
  calibration.other_card = fmt::format(
      "calibration {} was measured on {}, the cluster has {}: kernels follow the cards' figures, links their "
      "class",
      calibration.name, calibration.device, cluster.specs.front().name);
}

/// Kernels of another card. Within a generation they take as many clocks of a multiprocessor there as here,
/// or what the tensor cores here take. Across generations products reach the same share of the peak, while
/// the softmax does not gain more than multiprocessors and clock do.
void scale_kernels(const topology::Cluster& cluster, Calibration& calibration) {
  if (measured_here(cluster, calibration)) return;
  using topology::DeviceSpec;
  const double peak = min_of(cluster, &DeviceSpec::bf16_tflops, "bf16 peak");
  const double memory =
      min_of(cluster, &DeviceSpec::memory_gb_s, "memory bandwidth") / calibration.device_memory_gb_s;
  const KernelData measured = calibration.kernel.data();
  const topology::DeviceSpec& card = cluster.specs.front();
  const bool clocks = card.sm_count.known() && card.clock_hz.known() && card.power_w.known() &&
                      calibration.device_clock_hz > 0 && calibration.device_power_w > 0;
  KernelBorrowing by;
  by.memory = memory;
  by.same_generation = clocks && !card.generation.empty() && card.generation == calibration.generation;
  if (card.sm_count.known()) by.sm_count = *card.sm_count.value;
  if (by.same_generation) {
    const double clock = *card.clock_hz.value / calibration.device_clock_hz;
    const double watts =
        *card.power_w.value / *card.sm_count.value / (calibration.device_power_w / measured.sm_count);
    by.speed = by.softmax_speed = *card.sm_count.value / measured.sm_count * clock * sustained_clock(watts);
    by.tensor_tflops = peak;
  } else {
    by.speed = by.softmax_speed = peak / calibration.device_bf16_tflops;
    if (clocks)
      by.softmax_speed =
          *card.sm_count.value * *card.clock_hz.value / (measured.sm_count * calibration.device_clock_hz);
  }
  const bool own =
      std::abs(by.speed - 1) <= same_card && std::abs(peak / calibration.device_bf16_tflops - 1) <= same_card;
  const auto scale = [&](AttentionCostModel& kernel) {
    KernelData data = at_sustained_clock(kernel.data());
    data.memory_bytes_s *= memory;
    if (!own) data = borrowed(std::move(data), by, calibration.name);
    kernel = AttentionCostModel(std::move(data));
  };
  scale(calibration.kernel);
  for (auto& [backend, kernel] : calibration.other_kernels) scale(kernel);
  if (!own) calibration.gemm.reset();
}

}  // namespace

Calibration calibration_of(const topology::Cluster& cluster, const std::string& name) {
  const std::string& wanted = name.empty() ? cluster.calibration : name;
  if (wanted.empty())
    throw MissingValue({cluster.name, 0, ""}, "the calibration",
                       "name one with --calibration, or a card that has one with --device");
  Calibration calibration = load_calibration(wanted);
  if (name.empty())
    refuse_own_class(cluster, calibration);
  else
    refuse_other_class(cluster, calibration);
  if (!name.empty()) name_other_card(cluster, name, calibration);
  choose_links(cluster, calibration);  // first: it knows the measured card by its multiprocessors
  scale_kernels(cluster, calibration);
  if (!network_measured_here(cluster, calibration))
    calibration.network = on_another_network(std::move(calibration.network));
  if (calibration.network.line_gb_s == 0)
    calibration.network.exchange =
        inter_node_alltoall_efficiency(cluster.fabric.kind == topology::FabricKind::rail);
  use_own_curves(cluster, calibration);
  return calibration;
}

std::string void_p2p(const topology::ClusterRequest& asked, const topology::Cluster& cluster,
                     const Calibration& calibration) {
  // Without such pairs the cluster's own note says that nothing changes.
  if (asked.p2p.empty() || calibration.asks_p2p || !has_pcie_pairs(cluster)) return "";
  return "--p2p changes no price: " +
         (calibration.calibrated
              ? fmt::format("calibration {} was measured over such links", calibration.name)
              : std::string("uncalibrated links have the rates of their data sheets"));
}

int node_size(const topology::Cluster& cluster) {
  std::map<int, int> count;
  int most = 1;
  for (const topology::Device& device : cluster.devices) most = std::max(most, ++count[device.node]);
  return most;
}

DataSheet data_sheet_of(const topology::Cluster& cluster) {
  DataSheet sheet;
  sheet.bf16_tflops = min_of(cluster, &topology::DeviceSpec::bf16_tflops, "bf16 peak");
  sheet.memory_gb_s = min_of(cluster, &topology::DeviceSpec::memory_gb_s, "memory bandwidth");
  sheet.link_gb_s = link_gb_s(cluster);
  return sheet;
}

}  // namespace usp
