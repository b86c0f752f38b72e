// SPDX-License-Identifier: Apache-2.0
#include "assemble.hpp"

#include "usp/base/error.hpp"
#include "usp/base/version.hpp"
#include "usp/planner/kernel_fit.hpp"
#include "usp/schedule/words.hpp"
#include "usp/topology/validate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace usp::measure {
namespace {

constexpr const char* source = "usp calibrate";

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Parts of a kind that were measured, in the order of the list.
template <class Each>
void each_part(const Measured& measured, Part::Kind kind, const Each& each) {
  for (const Part& part : parts_of(measured.machine, false)) {
    const auto rows = measured.results.find(part.name());
    if (part.kind == kind && rows != measured.results.end()) each(part, rows->second);
  }
}

std::vector<KernelSample> kernel_samples(const Measured& measured, int element_bytes) {
  std::vector<KernelSample> samples;
  each_part(measured, Part::Kind::kernel, [&](const Part& part, const Rows& rows) {
    for (const auto& row : rows) {
      KernelShape shape{
          row[0],       row[1], part.head_dim, part.head_dim,
          row[2],       row[3], row[4],        static_cast<KernelShape::Mask>(static_cast<int>(row[5])),
          element_bytes};
      samples.push_back({shape, part.backward, row[6]});
    }
  });
  return samples;
}

/// Inside hosts: times that rise, as curves of hops have to.
HopCurve hop_curve(int ranks, const Rows& rows) {
  constexpr double least_rise = 1.0001;
  HopCurve curve{std::nullopt, ranks, source, {}};
  double before = 0;
  for (const auto& row : rows) {
    const double seconds = std::max(row[1], before * least_rise);
    curve.points.push_back({row[0], row[0] / seconds * 1e-9});
    before = row[0] / (curve.points.back().gb_s * 1e9);
  }
  return curve;
}

Collective collective_of(NetworkOperation operation) {
  switch (operation) {
    case NetworkOperation::all_gather:
      return Collective::all_gather;
    case NetworkOperation::reduce_scatter:
      return Collective::reduce_scatter;
    default:
      return Collective::alltoall;
  }
}

void add_exchanges(const Measured& measured, CalibrationFile& content) {
  each_part(measured, Part::Kind::exchange, [&](const Part& part, const Rows& rows) {
    if (part.key.hosts > 1) return;
    if (part.key.operation == NetworkOperation::hop) {
      content.point_to_point.push_back(hop_curve(part.key.ranks_per_host, rows));
      return;
    }
    CollectiveCurve curve{
        collective_of(part.key.operation), part.key.ranks_per_host, part.key.groups, rows[0][0], {}};
    for (const auto& row : rows) curve.time_s.push_back(row[1]);
    content.collectives.push_back(std::move(curve));
  });
}

Interference interference_of(const Rows& rows) {
  std::vector<double> shares;
  for (const auto& row : rows) {
    const double shorter = std::min(row[0], row[1]), longer = std::max(row[0], row[1]);
    shares.push_back(std::clamp((row[2] - longer) / shorter, 0.0, 1.0));
  }
  const auto [low, high] = std::minmax_element(shares.begin(), shares.end());
  return {median(shares), *low, *high, source};
}

void add_interference(const Measured& measured, CalibrationFile& content) {
  Interference inside{0, 0, 1,
                      measured.machine.shares_cores() ? "not measured: ranks share cores"
                                                      : "not measured: one rank per host"};
  each_part(measured, Part::Kind::interference, [&](const Part& part, const Rows& rows) {
    const Interference found = interference_of(rows);
    if (part.key.hosts == 1) {
      inside = found;
    } else if (content.network) {
      content.network->interference = found.share;
      content.network->min_interference = found.low;
      content.network->max_interference = found.high;
    }
  });
  content.interference.push_back({std::nullopt, inside});
}

/// Of small and of large messages: the median over all points.
Repeatability repeatability_of(const Measured& measured) {
  std::vector<double> small, large;
  each_part(measured, Part::Kind::exchange, [&](const Part&, const Rows& rows) {
    for (const auto& row : rows) (row[0] < 1048576 ? small : large).push_back(std::min(row[2], 10.0));
  });
  Repeatability repeat{median(small), median(large)};
  if (large.empty()) repeat.from_1mib = repeat.below_1mib;
  return repeat;
}

/// Bytes per second that leave a host at the longest message. Short ones may fit into what the network
/// buffers, and be faster than its line.
double line_gb_s(const NetworkKey& key, const Rows& rows) {
  return rows.back()[0] / key.messages() * key.messages_per_host() / rows.back()[1] * 1e-9;
}

/// A stated line that is no order of magnitude of what messages reached counts other units.
void check_line(double stated_gb_s, double measured_gb_s) {
  constexpr double most = 1000;
  if (stated_gb_s <= most * measured_gb_s && measured_gb_s <= most * stated_gb_s) return;
  throw UsageError(fmt::format(
      "--nic {:.4g} GB/s: messages between hosts reached {:.4g} GB/s, which is more than {} times "
      "off; state the line in bits or bytes per second (10Gb/s, 1.25GB/s), or leave --nic out",
      stated_gb_s, measured_gb_s, most));
}

void add_network(const Measured& measured, const CalibrateOptions& options, CalibrationFile& content) {
  if (measured.machine.host_count() < 2) return;
  MeasuredNetwork network;
  network.source = fmt::format("{}, {}", source, measured.communicator);
  network.latency_s = std::numeric_limits<double>::infinity();
  double most = 0;
  each_part(measured, Part::Kind::exchange, [&](const Part& part, const Rows& rows) {
    if (part.key.hosts < 2 || part.between_pair()) return;
    NetworkCurve& curve = network.curves.emplace_back();
    curve.key = part.key;
    if (part.key.operation == NetworkOperation::hop) curve.key.hosts = 2;  // of both ends
    for (const auto& row : rows) curve.points.push_back({row[0], row[1]});
    most = std::max(most, line_gb_s(curve.key, rows));
    if (part.key.operation == NetworkOperation::hop && part.key.ranks_per_host == 1)
      network.latency_s = std::min(network.latency_s, rows[0][1]);
  });
  // All hosts take part in every curve: the slowest one bounds it.
  const std::vector<double> lines = host_lines(measured, most);
  const double slowest = *std::min_element(lines.begin(), lines.end());
  if (options.nic_gb_s) check_line(*options.nic_gb_s, slowest);
  network.gb_s = options.nic_gb_s.value_or(slowest);
  set_shares(network, content.repeatability.from_1mib);
  content.network = std::move(network);
}

void add_kernels(const Measured& measured, const CalibrateOptions& options, CalibrationFile& content) {
  KernelData data;
  data.family = options.kernel;
  data.sm_count = content.device.sm_count;
  data.tile_rows = 1;
  data.element_bytes = static_cast<int>(bytes_of(options.dtype));
  data.carries_state = true;
  content.attention =
      fit_kernels(std::move(data), kernel_samples(measured, static_cast<int>(bytes_of(options.dtype))));
  content.library = CalibrationFile::Library{measured.kernel, std::string(version)};
  content.family_source = source;
  for (const KernelFit& fit : content.attention.fits)
    content.device.bf16_tflops = std::max(content.device.bf16_tflops, fit.peak_tflops);
}

/// Rates of copies: bytes read and written.
void add_copies(const Measured& measured, CalibrationFile& content) {
  std::vector<double> rates;
  each_part(measured, Part::Kind::copy, [&](const Part&, const Rows& rows) {
    for (const auto& row : rows) rates.push_back(row[0] / row[1] * 1e-9);
  });
  content.device.memory_gb_s = *std::max_element(rates.begin(), rates.end());
  content.memory_efficiency = std::clamp(median(rates) / content.device.memory_gb_s, 0.01, 1.0);
  content.memory_source = source;
}

/// The best rate of messages inside a host: what its curves are relative to.
double host_link_gb_s(const CalibrationFile& content) {
  double best = content.device.memory_gb_s;
  for (const HopCurve& curve : content.point_to_point)
    for (const HopCurve::Point& point : curve.points) best = std::max(best, point.gb_s);
  for (const CollectiveCurve& curve : content.collectives) {
    double bytes = curve.first_bytes;
    for (const double seconds : curve.time_s) {
      best = std::max(best, bytes * traffic_factor(curve.operation, curve.ranks) * curve.groups *
                                curve.ranks / seconds * 1e-9);
      bytes *= 2;
    }
  }
  return best;
}

std::string default_name(const Machine& machine) {
  return fmt::format("{}, {} x {}", machine.hosts.front(), machine.host_count(), machine.ranks_per_host());
}

}  // namespace

std::vector<double> host_lines(const Measured& measured, double network_gb_s) {
  constexpr double alike = 0.15;  // repeated measurements of one line lie so far apart on a busy machine
  const auto hosts = static_cast<std::size_t>(measured.machine.host_count());
  std::vector<double> lines(hosts, 0);
  each_part(measured, Part::Kind::exchange, [&](const Part& part, const Rows& rows) {
    if (!part.between_pair()) return;
    for (const int host : {part.first_host, part.second_host}) {
      double& line = lines[static_cast<std::size_t>(host)];
      line = std::max(line, line_gb_s(part.key, rows));
    }
  });
  const auto [least, most] = std::minmax_element(lines.begin(), lines.end());
  if (*least < (1 - alike) * *most) return lines;
  return std::vector<double>(hosts, std::max(network_gb_s, *most));
}

CalibrationFile calibration_of_parts(const Measured& measured, const CalibrateOptions& options) {
  CalibrationFile content;
  content.name = options.name;
  content.cluster = options.cluster.empty() ? default_name(measured.machine) : options.cluster;
  content.device.name = measured.kernel + " rank";
  content.device.source = source;
  content.repeatability = repeatability_of(measured);
  add_copies(measured, content);
  add_kernels(measured, options, content);
  add_exchanges(measured, content);
  add_network(measured, options, content);
  add_interference(measured, content);
  content.links = CalibrationFile::Links{"host", host_link_gb_s(content), source};
  const std::string where = fmt::format("{} hosts, {} ranks each, {}", measured.machine.host_count(),
                                        measured.machine.ranks_per_host(), measured.communicator);
  content.sources = {{"transfers", source, "own measurement", std::string(version), where},
                     {"attention", source, "own measurement", fmt::format("{} {}", measured.kernel, version),
                      fmt::format("{}, all ranks at once", word_of(options.dtype))}};
  return content;
}

topology::Cluster cluster_of(const Measured& measured, const CalibrationFile& calibration,
                             const CalibrateOptions& options) {
  const Machine& machine = measured.machine;
  const auto quantity = [](double value) {
    return topology::Quantity{value, topology::Provenance::measured, source};
  };
  topology::Cluster cluster;
  cluster.name = calibration.cluster;
  cluster.calibration = options.calibration_file;
  topology::DeviceSpec spec;
  spec.name = calibration.device.name;
  spec.sm_count = quantity(calibration.device.sm_count);
  spec.bf16_tflops = spec.fp16_tflops = spec.fp32_tflops = quantity(calibration.device.bf16_tflops);
  spec.memory_gb_s = quantity(calibration.device.memory_gb_s);
  std::vector<double> lines;
  if (calibration.network) lines = host_lines(measured, calibration.network->gb_s);
  if (options.nic_gb_s) std::fill(lines.begin(), lines.end(), *options.nic_gb_s);
  std::size_t most_ranks = 1;
  double memory = machine.memory_bytes.front();
  for (int host = 0; host < machine.host_count(); ++host) {
    const auto h = static_cast<std::size_t>(host);
    most_ranks = std::max(most_ranks, machine.ranks[h].size());
    memory = std::min(memory, machine.memory_bytes[h]);
    topology::Node node;
    node.id = host;
    node.name = machine.hosts[h];
    node.numa_count = 1;
    node.host_memory_bytes = quantity(machine.memory_bytes[h]);
    node.pcie_gb_s = node.numa_gb_s = quantity(calibration.links->gb_s);
    cluster.nodes.push_back(node);
    if (calibration.network) cluster.nics.push_back({host, host, "", 0, quantity(lines[h])});
  }
  spec.memory_bytes = quantity(std::floor(memory / static_cast<double>(most_ranks)));
  cluster.specs = {spec};
  for (std::size_t rank = 0; rank < machine.host_of.size(); ++rank) {
    topology::Device device;
    device.id = static_cast<int>(rank);
    device.node = machine.host_of[rank];
    device.local = machine.local(device.id);
    device.numa = 0;
    if (calibration.network) device.nics = {device.node};
    cluster.devices.push_back(device);
    cluster.spec_of_device.push_back(0);
  }
  cluster.fabric.kind = machine.host_count() > 1 ? topology::FabricKind::unknown : topology::FabricKind::none;
  if (calibration.network) cluster.fabric.latency_s = quantity(calibration.network->latency_s);
  topology::validate(cluster, "the cluster that was measured");
  return cluster;
}

}  // namespace usp::measure
