// SPDX-License-Identifier: Apache-2.0
#include "doubts.hpp"

#include "usp/base/presets.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/schedule/words.hpp"
#include "usp/topology/routes.hpp"
#include "usp/topology/validate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace usp {
namespace {

// Lanes between the sockets of a host: 2 to 4 links of 20 to 48 GB/s (UPI, xGMI).
constexpr double sockets_range = 2.2;
// As Efficiency of inter_node_ring_efficiency.
constexpr double gather_range = 2;
// Kernels of another card, as leave-one-card-out has it: within a generation and across.
constexpr double sibling_range = 1.15, stranger_range = 1.4;

void scale_kernels(Calibration& calibration, double factor) {
  const auto scale = [factor](AttentionCostModel& kernel) {
    KernelData data = kernel.data();
    for (KernelFit& fit : data.fits) fit.peak_tflops *= factor;
    data.tensor_tflops *= factor;
    kernel = AttentionCostModel(std::move(data));
  };
  scale(calibration.kernel);
  for (auto& [backend, kernel] : calibration.other_kernels) scale(kernel);
}

bool guessed_sockets(const topology::Cluster& cluster) {
  const auto guess = [](const topology::Node& node) {
    return node.numa_count != 1 && node.numa_gb_s.known() &&
           node.numa_gb_s.provenance == topology::Provenance::guess;
  };
  return std::any_of(cluster.nodes.begin(), cluster.nodes.end(), guess);
}

void add_network(const topology::Cluster& cluster, const Calibration& calibration,
                 std::vector<Doubt>& doubts) {
  if (cluster.nodes.size() < 2) return;
  const Efficiency &hop = calibration.network.hop, &exchange = calibration.network.exchange;
  const char* const origin = calibration.network.line_gb_s > 0 ? "borrowed" : "guess";
  if (!hop.measured)
    doubts.push_back(
        {Doubt::Of::network_hop, "share of the NIC's line that a ring hop reaches", origin,
         hop.low / hop.value, hop.high / hop.value,
         [](topology::Cluster&, Calibration& c, double factor) { c.network.hop.value *= factor; }});
  if (!exchange.measured)
    doubts.push_back(
        {Doubt::Of::network_exchange, "share of the NICs' line that an all-to-all reaches", origin,
         exchange.low / exchange.value, exchange.high / exchange.value,
         [](topology::Cluster&, Calibration& c, double factor) { c.network.exchange.value *= factor; }});
  const std::optional<Efficiency>&gather = calibration.network.gather,
        &reduce_scatter = calibration.network.reduce_scatter;
  if (!(gather && gather->measured && reduce_scatter && reduce_scatter->measured))
    doubts.push_back(
        {Doubt::Of::network_gather, "share of the NICs' line that gathers and reductions reach", origin,
         1 / gather_range, 1.5, [](topology::Cluster&, Calibration& c, double factor) {
           c.network.ring_factor *= factor;
           for (std::optional<Efficiency>* share : {&c.network.gather, &c.network.reduce_scatter})
             if (*share) (*share)->value *= factor;
         }});
  if (!cluster.fabric.latency_s.known() && !calibration.network.latency_s)
    doubts.push_back(
        {Doubt::Of::network_hop, "latency of a message between hosts", "guess", 1 / 3.0, 2,
         [](topology::Cluster&, Calibration& c, double factor) { c.network.latency_factor /= factor; }});
}

int ranks_inside(const topology::Cluster& cluster, int ranks) {
  return std::max(2, std::min(ranks, node_size(cluster)));
}

}  // namespace

std::vector<Doubt> doubts_of(const topology::Cluster& cluster, const Calibration& calibration) {
  std::vector<Doubt> doubts;
  if (!calibration.calibrated) return doubts;
  const double band = 1 + calibration.link_band;
  if (band > 1 && (calibration.comm.borrows() || (calibration.pcie && calibration.pcie->borrows())))
    doubts.push_back({Doubt::Of::links,
                      fmt::format("links inside a host, curves of {}", calibration.link_lender), "borrowed",
                      1 / band, band, [](topology::Cluster&, Calibration& c, double factor) {
                        c.comm = c.comm.borrowed_scaled(factor);
                        if (c.pcie) c.pcie = c.pcie->borrowed_scaled(factor);
                      }});
  if (calibration.pcie && guessed_sockets(cluster))
    doubts.push_back({Doubt::Of::sockets, "bandwidth between the sockets of a host", "guess",
                      1 / sockets_range, sockets_range,
                      [](topology::Cluster& c, Calibration&, double factor) {
                        for (topology::Node& node : c.nodes)
                          if (node.numa_gb_s.known()) *node.numa_gb_s.value *= factor;
                      }});
  add_network(cluster, calibration, doubts);
  if (const KernelData& data = calibration.kernel.data(); !data.scaled_from.empty()) {
    const double range = data.same_generation ? sibling_range : stranger_range;
    doubts.push_back({Doubt::Of::kernels, fmt::format("attention kernels, fits of {}", data.scaled_from),
                      "borrowed", 1 / range, range,
                      [](topology::Cluster&, Calibration& c, double factor) { scale_kernels(c, factor); }});
  }
  return doubts;
}

std::string host_measurement(const topology::Cluster& cluster, DType dtype) {
  const std::size_t ranks = cluster.devices.size();
  const bool own_file = !cluster.calibration.empty() && !is_shipped("calibrations", cluster.calibration);
  const std::string file = own_file ? cluster.calibration : "calibration.json";
  const std::filesystem::path beside = std::filesystem::path(file).parent_path() / "cluster.json";
  const std::string what =
      fmt::format("--dtype {} --restart -o {} --write-cluster {}", word_of(dtype), file, beside.string());
  return cluster.nodes.size() > 1 ? fmt::format("mpirun -n {} usp calibrate {}", ranks, what)
                                  : fmt::format("usp calibrate --ranks {} {}", ranks, what);
}

std::string measurement_of(Doubt::Of of, const topology::Cluster& cluster, DType dtype, const Mesh& best,
                           const Mesh& rival) {
  if (topology::on_host_cores(cluster)) return host_measurement(cluster, dtype);
  const int ulysses = std::max(best.ulysses, rival.ulysses);
  switch (of) {
    case Doubt::Of::links:
      if (best.ulysses != rival.ulysses)
        return fmt::format("alltoall_perf -b 1M -e 256M -f 2 -g {}", ranks_inside(cluster, ulysses));
      [[fallthrough]];
    case Doubt::Of::sockets:
      return fmt::format("sendrecv_perf -b 1M -e 256M -f 2 -g {}", std::max(2, node_size(cluster)));
    case Doubt::Of::network_hop:
      return "mpirun -n 2 --map-by node sendrecv_perf -b 1M -e 256M -f 2 -g 1";
    case Doubt::Of::network_exchange:
      return fmt::format("mpirun -n {} alltoall_perf -b 1M -e 256M -f 2 -g 1", ulysses);
    case Doubt::Of::network_gather:
      return fmt::format("mpirun -n {} all_gather_perf -b 1M -e 1024M -f 2 -g 1", cluster.devices.size());
    case Doubt::Of::kernels:
      break;
  }
  const topology::DeviceSpec& card = cluster.specs.front();
  const bool runs = std::any_of(backends().begin(), backends().end(), [&](Backend backend) {
    return backend->on_gpu && runs_on_generation(backend, card.generation);
  });
  if (!runs && !card.generation.empty())
    return fmt::format(
        "attention by a library of {}, whose calls usp score compares: no kernels of usp run there",
        card.name);
  return "usp bench plan.json --gpu --repeat 20";
}

std::vector<std::string> exchange_measurements(const topology::Cluster& cluster, const AttentionPlan& plan,
                                               const PassPrice& forward) {
  if (topology::on_host_cores(cluster)) return {host_measurement(cluster, plan.shape.dtype)};
  const Mesh& mesh = plan.mesh;
  const bool spans_hosts = forward.spans_hosts;
  const double exchange_bytes = forward.wire_bytes, hop_bytes = exchange_bytes / mesh.ring();
  const auto sizes = [](double bytes) {
    int mib = 1;
    while (mib < 1024 && static_cast<double>(mib) * 0x1p20 < bytes) mib *= 2;
    return fmt::format("-b 1M -e {}M -f 2", mib);
  };
  std::vector<std::string> runs;
  if (mesh.ulysses > 1)
    runs.push_back(
        spans_hosts ? fmt::format("mpirun -n {} alltoall_perf {} -g 1", mesh.ulysses, sizes(exchange_bytes))
                    : fmt::format("alltoall_perf {} -g {}", sizes(exchange_bytes), mesh.ulysses));
  if (mesh.ring() > 1)
    runs.push_back(spans_hosts
                       ? fmt::format("mpirun -n 2 --map-by node sendrecv_perf {} -g 1", sizes(hop_bytes))
                       : fmt::format("sendrecv_perf {} -g {}", sizes(hop_bytes), mesh.ring()));
  return runs;
}

void measure_first(const std::vector<GuessedInput>& guesses, std::vector<std::string>& measurements) {
  std::vector<std::string> all;
  const auto add = [&all](const std::string& run) {
    if (std::find(all.begin(), all.end(), run) == all.end()) all.push_back(run);
  };
  for (const GuessedInput& guess : guesses) add(guess.measurement);
  for (const std::string& run : measurements) add(run);
  measurements = std::move(all);
}

}  // namespace usp
