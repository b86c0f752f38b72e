// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/calibration_add.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/detail/card_backends.hpp"
#include "usp/planner/score_predict.hpp"
#include "usp/schedule/kernel_traits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

namespace usp {
namespace {

constexpr double most_kernel_factor = 64;
/// One factor scales latencies and rates alike. NCCL in place of copy engines takes up to twice their time,
/// and a link that two groups share doubles it again; transfers that are further off follow a curve of
/// another form, which has to be measured.
constexpr double most_transfer_factor = 4;
constexpr double no_transfer_factor = 1e-6;  ///< of times that are to vanish beside those of kernels
constexpr double most_spread = 16;           ///< of the factors of rows that one factor is to explain
constexpr double most_above_peak =
    1.25;  ///< of corrected kernels; the peak of cores is a measured rate itself

/// The part of a calibration that a row measures.
struct Target {
  enum class Of { kernels, alltoall, hops };
  Of of = Of::kernels;
  int ranks = 1;
  int hosts = 1;
  std::string backend = {};  ///< of kernels; empty: the calibration names none

  [[nodiscard]] std::string name() const {
    if (of == Of::kernels) return backend.empty() ? "kernels" : "kernels of " + backend;
    return fmt::format("{} of {}{}", of == Of::alltoall ? "alltoall" : "hops", counted(ranks, "rank"),
                       hosts > 1 ? fmt::format(" on {} hosts", hosts) : "");
  }
  [[nodiscard]] double most_factor() const {
    return of == Of::kernels ? most_kernel_factor : most_transfer_factor;
  }
  [[nodiscard]] bool has(const NetworkKey& key) const {
    if (hosts < 2) return false;
    if (of == Of::hops) return key.operation == NetworkOperation::hop;
    return key.operation == NetworkOperation::alltoall && key.hosts * key.ranks_per_host == ranks;
  }
  friend bool operator<(const Target& a, const Target& b) {
    return std::tie(a.of, a.ranks, a.hosts, a.backend) < std::tie(b.of, b.ranks, b.hosts, b.backend);
  }
};

std::vector<Pass> passes_of(const ScoreRow& row) {
  if (row.direction == ScoreRow::Direction::forward) return {Pass::forward};
  if (row.direction == ScoreRow::Direction::backward) return {Pass::backward};
  return {Pass::forward, Pass::backward};
}

/// The row with the backend that computed it, where the calibration names backends.
ScoreRow with_backend(ScoreRow row, const CalibrationFile& content, const std::string& file) {
  if (content.attention.backend.empty()) {
    row.backend.reset();
    return row;
  }
  if (row.library != ScoreRow::Library::usp)
    throw InvalidInput(
        location_of(row, file, "library"),
        fmt::format("the row was computed by the kernels of another library, and calibration {} "
                    "measured backends of this runtime; give rows of library usp",
                    content.name));
  if (!row.backend) row.backend = find_backend(content.attention.backend);
  return row;
}

/// Words of the measured backends.
std::string measured_words(const CalibrationFile& content) {
  std::string words = content.attention.backend;
  for (const AttentionSurface& other : content.other_attention) words += ", " + other.backend;
  return words;
}

/// A calibration is of hosts or of GPUs: rows of the other tell nothing of it.
std::string unmeasured_remedy(Backend backend, const CalibrationFile& content) {
  const bool of_host = content.links && content.links->link_class == host_links;
  if (of_host == backend->on_gpu)
    return fmt::format("leave out what {} computed: the calibration is of {}",
                       backend->on_gpu ? "GPUs" : "hosts", of_host ? "the cores of hosts" : "GPUs");
  return of_host
             ? fmt::format("measure them on this machine with usp calibrate --backend {}", word_of(backend))
             : std::string("measure them on this machine with usp calibrate --device cuda");
}

/// The backend whose kernels computed a pass of a row: its own, or what that leaves the call to.
std::string computing_backend(const ScoreRow& row, Pass pass, const CalibrationFile& content,
                              const topology::Cluster& cluster, const std::string& file) {
  if (!row.backend) return "";
  AttentionPlan plan = score_plan(row, file);
  const Calibration calibration = calibration_from(content);
  const CardBackends cards(cluster, calibration);
  const Range heads{0, std::max(1, plan.shape.query_heads / row.ulysses)};
  plan.backend = cards.computing(plan, pass, heads);
  if (const auto why = schedule::unsupported_reason(plan, pass, heads);
      why != schedule::UnsupportedReason::none)
    throw InvalidInput(location_of(row, file, "backend"),
                       fmt::format("no backend that {} leaves the call to takes it: {}",
                                   word_of(*row.backend), schedule::text_of(why, plan.backend)));
  if (surface_of(content, word_of(plan.backend)) == nullptr)
    throw InvalidInput(
        location_of(row, file, "backend"),
        fmt::format("{} was computed by {}, whose kernels calibration {} did not measure (it has {}); {}",
                    word_of(pass), word_of(plan.backend), content.name, measured_words(content),
                    unmeasured_remedy(plan.backend, content)));
  return std::string(word_of(plan.backend));
}

/// The surface that a row of one rank corrects.
std::string corrected_backend(const ScoreRow& row, const std::vector<std::string>& of_passes,
                              const std::string& file) {
  if (of_passes.front() != of_passes.back())
    throw InvalidInput(
        location_of(row, file, "direction"),
        fmt::format("forward was computed by {} and backward by {}: the time of both does not tell "
                    "which of them it is of; give rows of one pass",
                    of_passes.front(), of_passes.back()));
  return of_passes.front();
}

int hosts_of(const topology::Cluster& cluster, int ranks) {
  std::set<int> hosts;
  for (int rank = 0; rank < ranks; ++rank) hosts.insert(cluster.devices[static_cast<std::size_t>(rank)].node);
  return static_cast<int>(hosts.size());
}

void check_type(const ScoreRow& row, const AttentionSurface& surface, const std::string& file) {
  const i64 bytes = bytes_of(score_plan(row, file).shape.dtype);
  if (bytes != surface.data.element_bytes)
    throw InvalidInput(
        location_of(row, file, "dtype"),
        fmt::format("the row is of {} bytes per element, the calibration was measured with {}; "
                    "measure rows of its type",
                    bytes, surface.data.element_bytes));
}

Target target_of(const ScoreRow& row, const CalibrationFile& content, const topology::Cluster& cluster,
                 const std::string& file) {
  if (!row.seconds)
    throw InvalidInput(location_of(row, file, "iters_per_s"), "the row ran out of memory and has no time");
  if (static_cast<std::size_t>(row.world) > cluster.devices.size())
    throw InvalidInput(
        location_of(row, file, "world"),
        fmt::format("{} ranks need as many devices, the cluster has {}", row.world, cluster.devices.size()));
  if (row.ring > 1 && row.ulysses > 1)
    throw InvalidInput(
        location_of(row, file, "ring"),
        "the time of a call along both axes does not tell which of them it is of; give rows of ring 1 "
        "or ulysses 1");
  std::vector<std::string> of_passes;
  for (const Pass pass : passes_of(row)) {
    of_passes.push_back(computing_backend(row, pass, content, cluster, file));
    check_type(row, *surface_of(content, of_passes.back()), file);
  }
  if (row.world == 1) return {Target::Of::kernels, 1, 1, corrected_backend(row, of_passes, file)};
  return {row.ring > 1 ? Target::Of::hops : Target::Of::alltoall, row.world, hosts_of(cluster, row.world)};
}

void scale_kernels(KernelData& data, double factor) {
  for (KernelFit& fit : data.fits) {
    fit.launch_s *= factor;
    fit.peak_tflops /= factor;
    if (fit.kv_gb_s) *fit.kv_gb_s /= factor;
  }
  for (BackwardFit& fit : data.backward)
    if (fit.launch_s) *fit.launch_s *= factor;
}

CalibrationFile scaled(CalibrationFile content, const Target& target, double factor) {
  if (target.of == Target::Of::kernels) {
    scale_kernels(surface_of(content, target.backend)->data, factor);
    return content;
  }
  if (target.of == Target::Of::hops)
    for (HopCurve& curve : content.point_to_point)
      for (HopCurve::Point& point : curve.points) point.gb_s /= factor;
  else
    for (CollectiveCurve& curve : content.collectives)
      if (curve.operation == Collective::alltoall && curve.ranks == target.ranks)
        for (double& seconds : curve.time_s) seconds *= factor;
  if (!content.network) return content;
  for (NetworkCurve& curve : content.network->curves) {
    if (!target.has(curve.key)) continue;
    for (NetworkPoint& point : curve.points) point.time_s *= factor;
    for (double* share : {&curve.share, &curve.min_share, &curve.max_share}) *share /= factor;
  }
  return content;
}

struct Price {
  double seconds = 0, band = 0;
};

Price price_of(const CalibrationFile& content, const topology::Cluster& cluster, const ScoreRow& row,
               const std::string& file) {
  const Calibration calibration = calibration_from(content);
  ScorePredictor predictor(cluster, calibration, file);
  return {predictor.seconds(row), predictor.band(row)};
}

struct RowFactor {
  const ScoreRow* row = nullptr;
  double factor = 1;
  double band = 0;  ///< of transfers: relative half width of what the row says of their time
};

/// Of a row of transfers: the band that their corrected times have by it. The kernels of the call are known
/// within their band alone: a difference that this explains says nothing of transfers.
double transfer_band(const CalibrationFile& content, const topology::Cluster& cluster, const Target& target,
                     const ScoreRow& row, const std::string& file) {
  const Price call = price_of(content, cluster, row, file);
  const Price kernels = price_of(scaled(content, target, no_transfer_factor), cluster, row, file);
  const double slower_s = kernels.seconds * kernels.band, faster_s = slower_s / (1 + kernels.band);
  const double off_s = *row.seconds - call.seconds;
  if (-faster_s <= off_s && off_s <= slower_s)
    throw InvalidInput(
        location_of(row, file, "iters_per_s"),
        fmt::format(
            "the call took {:.3g} s and is priced {:.3g} s: the band of its kernels ({:.0f}% of {:.3g} s) "
            "explains the difference, and the time says nothing of {}; give a row in which transfers "
            "take more of the time (fewer tokens), a row of one rank where the kernels are wrong, or "
            "leave the row out",
            *row.seconds, call.seconds, 100 * kernels.band, kernels.seconds, target.name()));
  const double transfers_s = *row.seconds - kernels.seconds;
  const double of_kernels = transfers_s > slower_s ? slower_s / transfers_s : 1;
  return std::max(call.band, of_kernels);
}

/// Of the times of the target, the factor with which the row is priced as it was measured.
double factor_of(const CalibrationFile& content, const topology::Cluster& cluster, const Target& target,
                 const ScoreRow& row, const std::string& file) {
  const auto seconds = [&](double factor) {
    return price_of(scaled(content, target, factor), cluster, row, file).seconds;
  };
  double low = 1 / target.most_factor(), high = target.most_factor();
  if (seconds(low) > *row.seconds || seconds(high) < *row.seconds)
    throw InvalidInput(
        location_of(row, file, "iters_per_s"),
        fmt::format(
            "the call took {:.3g} s and is priced {:.3g} s, which {} up to {} times as fast or "
            "as slow do not explain; {}, or calibrate anew",
            *row.seconds, seconds(1), target.name(), target.most_factor(),
            target.of == Target::Of::kernels ? "give the time of one call" : "give a row of one rank first"));
  constexpr int halvings = 30;
  for (int i = 0; i < halvings; ++i) {
    const double middle = std::sqrt(low * high);
    (seconds(middle) < *row.seconds ? low : high) = middle;
  }
  return std::sqrt(low * high);
}

RowFactor measured_factor(const CalibrationFile& content, const topology::Cluster& cluster,
                          const Target& target, const ScoreRow& row, const std::string& file) {
  RowFactor measured{&row};
  if (target.of != Target::Of::kernels) measured.band = transfer_band(content, cluster, target, row, file);
  measured.factor = factor_of(content, cluster, target, row, file);
  return measured;
}

std::string name_of(const ScoreRow& row) {
  return row.keys.empty() ? fmt::format("line {}", row.line) : row.keys.at("iters_per_s");
}

/// One factor for rows that agree. Throws InvalidInput where they do not.
double common_factor(const std::vector<RowFactor>& rows, const Target& target, const std::string& file) {
  const auto less = [](const RowFactor& a, const RowFactor& b) { return a.factor < b.factor; };
  const auto [least, most] = std::minmax_element(rows.begin(), rows.end(), less);
  if (most->factor > most_spread * least->factor)
    throw InvalidInput(location_of(*most->row, file, "iters_per_s"),
                       fmt::format("the times of {} would be x {:.3g} by this row and x {:.3g} by {}: no "
                                   "correction explains both; leave out the wrong one, or calibrate anew",
                                   target.name(), most->factor, least->factor, name_of(*least->row)));
  double log_sum = 0;
  for (const RowFactor& row : rows) log_sum += std::log(row.factor);
  return std::exp(log_sum / static_cast<double>(rows.size()));
}

/// What the rows were off from their common factor.
double disagreement(const std::vector<RowFactor>& rows, double factor) {
  double off = 0;
  for (const RowFactor& row : rows)
    off = std::max(off, std::exp(std::abs(std::log(row.factor / factor))) - 1);
  return off;
}

/// Bands that hold what the rows were off.
void widen(KernelData& data, double off) {
  for (KernelFit& fit : data.fits) widen_fit(fit, off);
  for (BackwardFit& fit : data.backward) widen_fit(fit, off);
}

/// And what each row leaves unknown. A calibration has one band of all its transfers, by their length.
void widen(Repeatability& repeat, const std::vector<RowFactor>& rows, double off) {
  for (const RowFactor& row : rows) off = std::max(off, row.band);
  repeat.below_1mib = std::max(repeat.below_1mib, off);
  repeat.from_1mib = std::max(repeat.from_1mib, off);
}

/// The peak of cores is a measured rate, which rows may exceed; that of a card is its data sheet's.
void hold_to_peak(CalibrationFile& content, const AttentionSurface& corrected, const ScoreRow& row,
                  const std::string& file) {
  double fastest = 0;
  for (const KernelFit& fit : corrected.data.fits) fastest = std::max(fastest, fit.peak_tflops);
  CalibrationFile::Device& device = content.device;
  if (fastest <= device.bf16_tflops) return;
  if (!content.links || content.links->link_class != host_links)
    throw InvalidInput(
        location_of(row, file, "iters_per_s"),
        fmt::format("with these rows the kernels would run at {}, above the {} of {}; are shape, "
                    "mask and pass of the rows right?",
                    format_flop_rate(fastest * 1e12), format_flop_rate(device.bf16_tflops * 1e12),
                    device.name));
  device.bf16_tflops = fastest;
}

}  // namespace

CorrectedCalibration add_rows(const CalibrationFile& content, const topology::Cluster& cluster,
                              const std::vector<ScoreRow>& rows, const std::string& file) {
  if (content.cluster.empty() || content.cluster != cluster.name)
    throw InvalidInput(
        {file, 0, ""},
        fmt::format("calibration {} is of cluster '{}', and the rows were measured on '{}': they say "
                    "nothing of it; name its own cluster",
                    content.name, content.cluster, cluster.name));
  std::map<Target, std::vector<const ScoreRow*>> by_target;  // kernels first
  std::vector<ScoreRow> named;
  for (const ScoreRow& row : rows) named.push_back(with_backend(row, content, file));
  for (const ScoreRow& row : named) by_target[target_of(row, content, cluster, file)].push_back(&row);
  CorrectedCalibration result{content, {}};
  for (const auto& [target, of_target] : by_target) {
    std::vector<RowFactor> factors;
    for (const ScoreRow* row : of_target)
      factors.push_back(measured_factor(result.content, cluster, target, *row, file));
    const double factor = common_factor(factors, target, file);
    result.content = scaled(std::move(result.content), target, factor);
    const double off = disagreement(factors, factor);
    if (target.of == Target::Of::kernels) {
      AttentionSurface& corrected = *surface_of(result.content, target.backend);
      widen(corrected.data, off);
      hold_to_peak(result.content, corrected, *factors.front().row, file);
    } else {
      widen(result.content.repeatability, factors, off);
    }
    result.corrections.push_back({target.name(), factor, static_cast<int>(of_target.size())});
    result.content.sources.push_back(
        {"corrected: " + target.name(), file, "own measurement", "usp score rows",
         fmt::format("times x {:.4g}, by {}", factor, counted(of_target.size(), "row"))});
  }
  return result;
}

}  // namespace usp
