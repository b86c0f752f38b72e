// SPDX-License-Identifier: Apache-2.0
#include "assemble.hpp"

#include "measured_cluster.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
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

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Parts of a kind that were measured, in the order of the list.
template <class Each>
void each_part(const Measured& measured, Part::Kind kind, const Each& each) {
  Scope all = measured.scope;
  all.quick = false;
  for (const Part& part : parts_of(measured.machine, all)) {
    const auto rows = measured.results.find(part.name());
    if (part.kind == kind && rows != measured.results.end()) each(part, rows->second);
  }
}

std::vector<KernelSample> kernel_samples(const Measured& measured, const std::string& kernel,
                                         int element_bytes) {
  std::vector<KernelSample> samples;
  each_part(measured, Part::Kind::kernel, [&](const Part& part, const Rows& rows) {
    if (part.backend != kernel) return;
    for (const auto& row : rows) {
      KernelShape shape{
          row[0],       row[1], part.head_dim, part.head_dim_v,
          row[2],       row[3], row[4],        static_cast<KernelShape::Mask>(static_cast<int>(row[5])),
          element_bytes};
      samples.push_back({shape, part.backward, row[6]});
    }
  });
  return samples;
}

/// Inside hosts: times that rise, as curves of hops have to.
HopCurve hop_curve(const Part& part, const Rows& rows) {
  constexpr double least_rise = 1.0001;
  HopCurve curve{part.transport, part.key.ranks_per_host, source, {}};
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
      content.point_to_point.push_back(hop_curve(part, rows));
      return;
    }
    CollectiveCurve curve{collective_of(part.key.operation),
                          part.key.ranks_per_host,
                          part.key.groups,
                          rows[0][0],
                          {},
                          part.transport};
    for (const auto& row : rows) curve.time_s.push_back(row[1]);
    content.collectives.push_back(std::move(curve));
  });
}

/// What is moved adds to a kernel that waits for the hand-shakes of its tick anyway.
Interference interference_of(const Rows& rows) {
  std::vector<double> shares, ticks;
  for (const auto& row : rows) {
    const double shorter = std::min(row[1], row[2]), longer = std::max(row[1], row[2]);
    shares.push_back(std::clamp((row[3] - longer) / shorter, 0.0, 1.0));
    ticks.push_back(std::max(0.0, row[1] - row[0]));
  }
  const auto [low, high] = std::minmax_element(shares.begin(), shares.end());
  return {median(shares), *low, *high, source, median(ticks)};
}

/// Why transfers over a transport were not timed beside a kernel.
std::string no_interference(const Measured& measured, std::optional<Transport> transport) {
  const auto& over = measured.scope.transports;
  if (std::find(over.begin(), over.end(), transport) == over.end())
    return "not measured: this transport was not";
  if (!measured.scope.on_gpu && measured.machine.shares_cores()) return "not measured: ranks share cores";
  return "not measured: one rank per host";
}

void add_interference(const Measured& measured, CalibrationFile& content) {
  std::vector<std::optional<Transport>> transports{std::nullopt};
  if (measured.scope.on_gpu) transports = {Transport::copy_engine, Transport::nccl};
  for (const std::optional<Transport> transport : transports) {
    Interference inside{0, 0, 1, no_interference(measured, transport)};
    each_part(measured, Part::Kind::interference, [&](const Part& part, const Rows& rows) {
      if (part.transport != transport) return;
      const Interference found = interference_of(rows);
      if (part.key.hosts == 1) {
        inside = found;
      } else if (content.network) {
        content.network->interference = found.share;
        content.network->min_interference = found.low;
        content.network->max_interference = found.high;
      }
    });
    content.interference.push_back({transport, inside});
  }
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

constexpr int device_tile_rows = 128;  ///< of the kernels of all backends of GPUs

/// What a pass through the runtime takes beside the kernel.
void add_calls(const Measured& measured, const std::string& kernel, KernelData& data) {
  each_part(measured, Part::Kind::call, [&](const Part& part, const Rows& rows) {
    if (part.backend != kernel || rows.size() != 2) return;
    data.call_forward_s = std::max(0.0, rows[0][1] - rows[0][0]);
    data.call_backward_s = std::max(0.0, rows[1][1] - rows[1][0]);
  });
}

/// Both passes of a long causal call, by which the backend is told that plans take first.
double typical_seconds(const AttentionSurface& surface, const CalibrationFile::Device& device) {
  constexpr double tokens = 8192;
  const KernelShape call{16, 16, 128, 128, tokens, tokens / 2, tokens, KernelShape::Mask::causal, 2};
  KernelData data = surface.data;
  data.memory_bytes_s = std::max(1.0, device.memory_gb_s) * 1e9;
  const AttentionCostModel model(std::move(data));
  return model.forward(call).seconds + model.backward(call).seconds;
}

void add_kernels(const Measured& measured, int element_bytes, CalibrationFile& content) {
  for (std::size_t i = 0; i < measured.scope.kernels.size(); ++i) {
    const std::string& word = measured.scope.kernels[i];
    const auto samples = kernel_samples(measured, word, element_bytes);
    if (samples.empty()) continue;
    KernelData data;
    data.family = word;
    data.sm_count = content.device.sm_count;
    data.tile_rows = measured.scope.on_gpu ? device_tile_rows : 1;
    data.element_bytes = element_bytes;
    data.carries_state = true;
    AttentionSurface surface;
    if (const auto backend = find_backend(word)) {
      surface.backend = word;
      data.carries_state = (*backend)->carries_state;
    }
    add_calls(measured, word, data);
    surface.data = fit_kernels(std::move(data), samples);
    surface.library = AttentionSurface::Library{measured.kernels[i].name, measured.kernels[i].version};
    surface.family_source = source;
    content.other_attention.push_back(std::move(surface));
  }
  auto& all = content.other_attention;
  if (all.empty())
    throw EnvironmentError("no attention kernel could be measured; name another one with --backend");
  const auto fastest =
      std::min_element(all.begin(), all.end(), [&](const AttentionSurface& a, const AttentionSurface& b) {
        return typical_seconds(a, content.device) < typical_seconds(b, content.device);
      });
  content.attention = std::move(*fastest);
  all.erase(fastest);
}

/// Of rates of copies, bytes read and written.
std::vector<double> copy_rates(const Measured& measured) {
  std::vector<double> rates;
  each_part(measured, Part::Kind::copy, [&](const Part&, const Rows& rows) {
    for (const auto& row : rows) rates.push_back(row[0] / row[1] * 1e-9);
  });
  return rates;
}

/// Rates of products, TFLOP/s.
std::vector<double> product_rates(const Measured& measured) {
  std::vector<double> rates;
  each_part(measured, Part::Kind::product, [&](const Part&, const Rows& rows) {
    for (const auto& row : rows) rates.push_back(2 * row[0] * row[1] * row[2] / row[3] * 1e-12);
  });
  return rates;
}

/// Of a rank of a host, and of a card without a data sheet: the peak is what kernels and products reach, the
/// bandwidth that of copies.
void fill_rates(const Measured& measured, CalibrationFile& content) {
  CalibrationFile::Device& device = content.device;
  if (device.bf16_tflops == 0) {
    for (const KernelFit& fit : content.attention.data.fits)
      device.bf16_tflops = std::max(device.bf16_tflops, fit.peak_tflops);
    for (const double rate : product_rates(measured)) device.bf16_tflops = std::max(device.bf16_tflops, rate);
  }
  if (device.memory_gb_s > 0) return;
  const std::vector<double> copies = copy_rates(measured);
  device.memory_gb_s = *std::max_element(copies.begin(), copies.end());
}

void add_shares(const Measured& measured, CalibrationFile& content) {
  content.memory_efficiency =
      std::clamp(median(copy_rates(measured)) / content.device.memory_gb_s, 0.01, 1.0);
  content.memory_source = source;
  std::vector<double> shares;
  for (const double rate : product_rates(measured))
    shares.push_back(std::clamp(rate / content.device.bf16_tflops, 1e-4, 1.0));
  if (shares.empty()) return;
  const auto [low, high] = std::minmax_element(shares.begin(), shares.end());
  content.products = MeasuredProducts{median(shares), *low, *high, measured.products, source};
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

/// What carried transfers, with its version.
std::string carriers(const Measured& measured) {
  std::string names;
  for (const std::optional<Transport> transport : measured.scope.transports) {
    const std::string name = !transport                      ? measured.communicator
                             : *transport == Transport::nccl ? "NCCL " + measured.nccl
                                                             : "copy engines";
    names += (names.empty() ? "" : ", ") + name;
  }
  return names.empty() ? measured.communicator : names;
}

void add_sources(const Measured& measured, DType dtype, CalibrationFile& content) {
  const std::string where =
      fmt::format("{}, {} each, {}{}", counted(measured.machine.host_count(), "host"),
                  counted(measured.machine.ranks_per_host(), "rank"), measured.communicator,
                  measured.card ? "; " + conditions_of(*measured.card) : std::string());
  content.sources.push_back({"transfers", source, "own measurement", carriers(measured), where});
  for (const Measured::Kernel& kernel : measured.kernels)
    content.sources.push_back({"attention", source, "own measurement",
                               fmt::format("{} {}", kernel.name, kernel.version),
                               fmt::format("{}, all ranks at once", word_of(dtype))});
  if (content.products)
    content.sources.push_back({"matrix products", source, "own measurement", measured.products,
                               fmt::format("{}, all ranks at once", word_of(dtype))});
}

/// "32/8 x 4096 causal", "16/16 x 1024 of 8192 full".
std::string call_text(const KernelShape& s) {
  return fmt::format("{:.0f}/{:.0f} x {:.0f}{} {}", s.query_heads, s.kv_heads, s.rows,
                     s.key_rows == s.rows ? "" : fmt::format(" of {:.0f}", s.key_rows),
                     s.mask == KernelShape::Mask::full ? "full" : "causal");
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

std::vector<KernelMiss> misses_of(const Measured& measured, const CalibrationFile& calibration) {
  std::vector<KernelMiss> misses;
  std::vector<const AttentionSurface*> surfaces{&calibration.attention};
  for (const AttentionSurface& other : calibration.other_attention) surfaces.push_back(&other);
  for (const AttentionSurface* surface : surfaces) {
    const std::string& word = surface->data.family;
    const AttentionCostModel model(surface->data);
    for (const KernelSample& s : kernel_samples(measured, word, surface->data.element_bytes)) {
      if (s.shape.mask == KernelShape::Mask::window) continue;  // told apart
      const Estimate fit = s.backward ? model.backward(s.shape) : model.forward(s.shape);
      const double off = fit.seconds / s.seconds - 1;
      const auto same = std::find_if(misses.begin(), misses.end(), [&](const KernelMiss& m) {
        return m.kernel == word && m.backward == s.backward && m.head_dim == s.shape.head_dim_qk &&
               m.head_dim_v == s.shape.head_dim_v;
      });
      const KernelMiss miss{word, s.backward, s.shape.head_dim_qk, s.shape.head_dim_v, call_text(s.shape),
                            off};
      if (same == misses.end())
        misses.push_back(miss);
      else if (std::abs(off) > std::abs(same->off))
        *same = miss;
    }
  }
  return misses;
}

CalibrationFile calibration_of_parts(const Measured& measured, const CalibrateOptions& options) {
  const DType dtype = dtype_of(options, measured.scope.on_gpu);
  CalibrationFile content;
  content.name = options.name;
  content.cluster = options.cluster.empty() ? default_name(measured.machine) : options.cluster;
  content.repeatability = repeatability_of(measured);
  if (!measured.scope.on_gpu && measured.machine.shares_cores())
    content.shared_cores = {static_cast<int>(measured.machine.own_core.size()), measured.machine.cores()};
  content.device.name = measured.kernels.front().name + " rank";
  content.device.source = source;
  if (measured.card) content.device = device_of_card(*measured.card);
  add_kernels(measured, static_cast<int>(bytes_of(dtype)), content);
  fill_rates(measured, content);
  add_shares(measured, content);
  add_exchanges(measured, content);
  add_network(measured, options, content);
  add_interference(measured, content);
  content.links = measured.card
                      ? links_of_card(*measured.card, content)
                      : CalibrationFile::Links{std::string(host_links), host_link_gb_s(content), source};
  add_sources(measured, dtype, content);
  return content;
}

topology::Cluster cluster_of(const Measured& measured, const CalibrationFile& calibration,
                             const CalibrateOptions& options) {
  std::vector<double> lines;
  if (calibration.network) lines = host_lines(measured, calibration.network->gb_s);
  if (options.nic_gb_s) std::fill(lines.begin(), lines.end(), *options.nic_gb_s);
  topology::Cluster cluster = measured.card
                                  ? cluster_of_cards(measured, calibration)
                                  : cluster_of_ranks(measured.machine, calibration, dtype_of(options, false));
  cluster.name = calibration.cluster;
  cluster.calibration = options.calibration_file;
  for (std::size_t host = 0; host < lines.size(); ++host)
    cluster.nics.push_back({static_cast<int>(host), static_cast<int>(host), "", 0, quantity(lines[host])});
  if (calibration.network) {
    for (topology::Device& device : cluster.devices) device.nics = {device.node};
    cluster.fabric.latency_s = quantity(calibration.network->latency_s);
  }
  cluster.fabric.kind =
      measured.machine.host_count() > 1 ? topology::FabricKind::unknown : topology::FabricKind::none;
  topology::validate(cluster, "the cluster that was measured");
  return cluster;
}

}  // namespace usp::measure
