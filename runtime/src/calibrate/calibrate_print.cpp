// SPDX-License-Identifier: Apache-2.0
#include "usp/base/table.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"
#include "usp/runtime/calibrate.hpp"

#include <fmt/format.h>

namespace usp {
namespace {

using Align = TextTable::Align;

std::string head_dims_text(int qk, int v) {
  return qk == v ? std::to_string(qk) : fmt::format("{}/{}", qk, v);
}

std::string farthest_text(const std::vector<KernelMiss>& misses, const std::string& kernel, bool backward,
                          int qk, int v) {
  for (const KernelMiss& m : misses)
    if (m.kernel == kernel && m.backward == backward && m.head_dim == qk && m.head_dim_v == v)
      return fmt::format("{} {:+.0f}%", m.call, 100 * m.off);
  return "";
}

void add_surface(TextTable& table, const AttentionSurface& surface, const std::vector<KernelMiss>& misses) {
  const std::string backend = surface.backend.empty() ? surface.data.family : surface.backend;
  const auto row = [&](const char* pass, const auto& fit, double tflops, double launch_s) {
    table.row({fmt::format("{} {}", backend, pass), head_dims_text(fit.head_dim, fit.head_dim_v),
               format_fixed(tflops * 1e3, 2), format_seconds(launch_s), std::to_string(fit.rows),
               format_percent(fit.mape), format_percent(fit.p90),
               farthest_text(misses, surface.data.family, pass == std::string_view("backward"), fit.head_dim,
                             fit.head_dim_v)});
  };
  for (std::size_t i = 0; i < surface.data.fits.size(); ++i) {
    const KernelFit& fit = surface.data.fits[i];
    row("forward", fit, fit.peak_tflops, fit.launch_s);
    const BackwardFit& backward = surface.data.backward[i];
    if (backward.rows > 0)
      row("backward", backward, fit.peak_tflops / backward.rate_ratio, backward.launch_s.value_or(0));
  }
}

std::string kernels_table(const CalibrationFile& calibration, const std::vector<KernelMiss>& misses) {
  TextTable table;
  table.column("kernel");
  for (const char* name : {"head dim", "GFLOP/s", "launch", "calls", "mean error", "90% within"})
    table.column(name, Align::right);
  table.column("farthest off by its fit");
  add_surface(table, calibration.attention, misses);
  for (const AttentionSurface& surface : calibration.other_attention) add_surface(table, surface, misses);
  return table.str(2);
}

std::string transfers_table(const CalibrationFile& calibration) {
  TextTable table;
  table.column("transfer");
  table.column("by");
  for (const char* name : {"hosts", "ranks per host", "groups", "shortest", "longest", "its time", "share"})
    table.column(name, Align::right);
  const auto row = [&](std::string_view operation, std::optional<Transport> transport, const NetworkKey& key,
                       double shortest_s, double bytes, double seconds, const std::string& share) {
    table.row({std::string(operation), transport ? std::string(word_of(*transport)) : "",
               std::to_string(key.hosts), std::to_string(key.ranks_per_host), std::to_string(key.groups),
               format_seconds(shortest_s), format_bytes(bytes), format_seconds(seconds), share});
  };
  const auto seconds_at = [](const HopCurve::Point& point) { return point.bytes / (point.gb_s * 1e9); };
  for (const HopCurve& curve : calibration.point_to_point)
    row("hop", curve.transport, {NetworkOperation::hop, 1, curve.ranks, 1}, seconds_at(curve.points.front()),
        curve.points.back().bytes, seconds_at(curve.points.back()), "");
  for (const CollectiveCurve& curve : calibration.collectives)
    row(word_of(curve.operation), curve.transport, {NetworkOperation::alltoall, 1, curve.ranks, curve.groups},
        curve.time_s.front(),
        curve.first_bytes * static_cast<double>(std::uint64_t{1} << (curve.time_s.size() - 1)),
        curve.time_s.back(), "");
  if (calibration.network)
    for (const NetworkCurve& curve : calibration.network->curves)
      row(word_of(curve.key.operation), std::nullopt, curve.key, curve.points.front().time_s,
          curve.points.back().bytes, curve.points.back().time_s, format_percent(curve.share));
  return table.str(2);
}

}  // namespace

std::string calibrate_text(const CalibrateResult& result) {
  const CalibrationFile& calibration = result.calibration;
  std::string text = fmt::format(
      "{}: {} and {} ({}), {} measurements in {}{}\n", calibration.cluster,
      counted(result.cluster.devices.size(), "rank"), counted(result.cluster.nodes.size(), "host"),
      result.communicator, result.parts, format_seconds(result.seconds),
      result.resumed > 0 ? fmt::format(", {} of them before", result.resumed) : "");
  text += kernels_table(calibration, result.misses);
  if (!calibration.point_to_point.empty() || calibration.network) text += transfers_table(calibration);
  text += fmt::format("  copies {} GB/s",
                      format_fixed(calibration.device.memory_gb_s * calibration.memory_efficiency, 2));
  if (const auto& products = calibration.products)
    text += fmt::format("; products {} GFLOP/s ({})",
                        format_fixed(products->share * calibration.device.bf16_tflops * 1e3, 2),
                        products->library);
  if (calibration.network)
    text += fmt::format("; line of a host {} GB/s, latency {}", format_fixed(calibration.network->gb_s, 4),
                        format_seconds(calibration.network->latency_s));
  if (!calibration.point_to_point.empty() || !calibration.collectives.empty() || calibration.network)
    text += fmt::format("; repeats within {} (short) and {} (long messages)",
                        format_percent(calibration.repeatability.below_1mib),
                        format_percent(calibration.repeatability.from_1mib));
  return text + "\n";
}

}  // namespace usp
