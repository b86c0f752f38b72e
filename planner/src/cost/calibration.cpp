// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/calibration.hpp"

#include "usp/base/error.hpp"
#include "usp/base/json_units.hpp"
#include "usp/base/presets.hpp"
#include "usp/base/text.hpp"
#include "usp/planner/calibration_file.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp {
namespace {

/// Seconds as nccl-tests' microseconds convert to them: one measurement is one double from either file.
double seconds_of(double seconds) {
  return from_si(seconds, FieldUnit::us) * 1e-6;
}

/// The transports that a row is of.
std::vector<Transport> transports_of(const std::optional<Transport>& transport) {
  if (transport) return {*transport};
  return {Transport::copy_engine, Transport::nccl};
}

TransferModel transfer_model(const CalibrationFile& content) {
  std::vector<CollectiveRow> rows;
  for (const CollectiveCurve& curve : content.collectives) {
    double bytes = curve.first_bytes;
    for (const double seconds : curve.time_s) {
      rows.push_back(
          {curve.operation, curve.ranks, bytes, seconds_of(seconds), curve.groups, 0, curve.transport});
      bytes *= 2;
    }
  }
  std::vector<PeerTransferSample> hops;
  for (const HopCurve& curve : content.point_to_point)
    for (const Transport transport : transports_of(curve.transport))
      for (const HopCurve::Point& point : curve.points)
        hops.push_back({transport, point.bytes, point.bytes / (point.gb_s * 1e9), curve.ranks});
  return {std::move(rows), std::move(hops), content.repeatability, content.name};
}

AttentionCostModel kernel_model(const CalibrationFile& content, const AttentionSurface& surface) {
  KernelData data = surface.data;
  if (surface.library) data.library = surface.library->name + " " + surface.library->version;
  data.sm_count = content.device.sm_count;
  data.memory_bytes_s = content.device.memory_gb_s * 1e9 * content.memory_efficiency;
  for (KernelFit& fit : data.fits) fit.launch_s = seconds_of(fit.launch_s);
  return AttentionCostModel(std::move(data));
}

}  // namespace

Calibration calibration_from(const CalibrationFile& content) {
  Calibration calibration;
  calibration.calibrated = true;
  calibration.name = content.name;
  calibration.cluster = content.cluster;
  calibration.sources = content.sources;
  calibration.device = content.device.name;
  if (const auto& shared = content.shared_cores)
    calibration.shared_cores = fmt::format(
        "calibration {} was measured by {} on {}, which wait for each other: kernels were timed on as many "
        "ranks as there are cores, and what transfers add to them was not",
        content.name, counted(shared->ranks, "rank"), counted(shared->cores, "core"));
  calibration.device_bf16_tflops = content.device.bf16_tflops;
  calibration.device_memory_gb_s = content.device.memory_gb_s;
  calibration.generation = content.device.generation.value_or("");
  calibration.device_clock_hz = content.device.clock_hz.value_or(0);
  calibration.device_power_w = content.device.power_w.value_or(0);
  if (content.links) {
    calibration.link_class = content.links->link_class;
    calibration.link_gb_s = content.links->gb_s;
  }
  for (const InterferenceRow& row : content.interference)
    for (const Transport transport : transports_of(row.transport))
      calibration.interference[static_cast<std::size_t>(transport)] = row.measured;
  if (content.network) calibration.network = network_rates(*content.network, content.repeatability.from_1mib);
  calibration.comm = transfer_model(content);
  calibration.kernel = kernel_model(content, content.attention);
  calibration.kernel_backend = content.attention.backend;
  for (const AttentionSurface& surface : content.other_attention)
    calibration.other_kernels.emplace_back(surface.backend, kernel_model(content, surface));
  if (const auto& products = content.products)
    calibration.gemm = {products->share, std::max(products->max_share / products->share - 1,
                                                  1 - products->min_share / products->share)};
  return calibration;
}

Calibration parse_calibration(const std::string& text, const std::string& file) {
  return calibration_from(read_calibration_file(text, file));
}

Calibration load_calibration(const std::string& name_or_file) {
  const NamedText found = file_or_preset("calibrations", name_or_file);
  return parse_calibration(found.text, found.name);
}

bool Calibration::measured(Backend backend) const {
  const auto has = [&](Backend part) {
    return part->word == kernel_backend ||
           std::any_of(other_kernels.begin(), other_kernels.end(),
                       [&](const auto& other) { return other.first == part->word; });
  };
  return has(backend.of(Pass::forward)) && has(backend.of(Pass::backward));
}

const AttentionCostModel& Calibration::kernel_of(Backend backend) const {
  const auto found = std::find_if(other_kernels.begin(), other_kernels.end(),
                                  [&](const auto& other) { return other.first == backend->word; });
  return found == other_kernels.end() ? kernel : found->second;
}

CalibrationSummary Calibration::summary(std::uint32_t extrapolation) const {
  CalibrationSummary summary;
  summary.name = calibrated ? name : "uncalibrated";
  summary.calibrated = calibrated;
  for (const CalibrationSource& source : sources)
    summary.sources.push_back(
        fmt::format("{}: {}, {} ({})", source.measurement, source.source, source.version, source.licence));
  summary.comm_error = comm.mean_error();
  summary.kernel_error = kernel.mean_error();
  summary.extrapolations = extrapolation_reasons(extrapolation);
  if (!other_card.empty()) summary.extrapolations.push_back(other_card);
  if (!shared_cores.empty()) summary.extrapolations.push_back(shared_cores);
  return summary;
}

Calibration uncalibrated(const DataSheet& sheet) {
  if (!(sheet.bf16_tflops > 0))
    throw MissingValue({"data sheet", 0, ""}, "bf16 peak",
                       "name the card with --device or give a calibration");
  if (!(sheet.memory_gb_s > 0))
    throw MissingValue({"data sheet", 0, ""}, "memory bandwidth",
                       "name the card with --device or give a calibration");
  if (!(sheet.link_gb_s > 0))
    throw MissingValue({"data sheet", 0, ""}, "link bandwidth",
                       "give it in the cluster file, or measured curves with --curves");
  Calibration calibration;
  calibration.name = "uncalibrated";
  calibration.comm = TransferModel::alpha_beta(sheet.alpha_s, sheet.link_gb_s);
  calibration.kernel = AttentionCostModel::constant(sheet.bf16_tflops, sheet.efficiency, sheet.memory_gb_s);
  return calibration;
}

}  // namespace usp
