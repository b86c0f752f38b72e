// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/attention_cost_model.hpp"

#include "usp/base/error.hpp"
#include "usp/base/units.hpp"
#include "usp/schedule/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace usp {
namespace {

// Widening of the band beyond the fit's own p90, each by what the public tables scatter:
constexpr double head_dim_band =
    0.2;  // head_dim 256 against 128 on H100: .94 (cuDNN) to 1.17 (FA3) of its rate
constexpr double length_band = 0.08;    // 16K to 32K on H100: 0 to -10 %
constexpr double full_band = 0.05;      // full against causal at 16K: 1.04 to 1.10
constexpr double window_band = 0.25;    // where no windowed rows were measured
constexpr double backward_band = 0.15;  // forward over backward rate at head_dim 128: 1.10 (cuDNN) to 1.21
constexpr double platform_band = 0.4;   // another architecture's efficiency
constexpr double type_band = 0.5;
constexpr double uncalibrated_band = 1.0;
constexpr double memory_band = 0.15;
constexpr double memory_launch_s = 3e-6;  // one small kernel back to back on a stream

// Rate against bf16: fp8 forward on H200 (cuDNN, head_dim 128, 16K, full) 1055 against 702; fp32 and fp64 run
// on the vector units, 1/16 and 1/32 of the dense bf16 peak on A100.
double type_rate(int element_bytes) {
  if (element_bytes == 2) return 1;
  if (element_bytes == 1) return 1055.0 / 702.0;
  return element_bytes == 4 ? 1.0 / 16 : 1.0 / 32;
}

}  // namespace

AttentionCostModel::AttentionCostModel(KernelData data) : data_(std::move(data)) {
  expects(!data_.fits.empty(), "an attention cost model needs a fit");
  rates_.reserve(max_head_dim + 1);
  for (int d = 0; d <= max_head_dim; ++d) rates_.push_back(rates_at(d));
}

AttentionCostModel AttentionCostModel::constant(double peak_tflops, double efficiency, double memory_gb_s) {
  KernelData data;
  data.family = "data sheet";
  data.sm_count = 1;
  data.tile_rows = 1;
  data.min_tokens = 0;
  data.max_tokens = 1e18;
  KernelFit fit;
  fit.head_dim = 128;
  fit.peak_tflops = peak_tflops * efficiency;
  fit.kv_gb_s = 1e18;
  data.fits.push_back(fit);
  data.backward.push_back({128, 1, 0});
  data.memory_bytes_s = memory_gb_s * 1e9;
  data.uncalibrated = true;
  return AttentionCostModel(std::move(data));
}

double AttentionCostModel::score_time(double head_dim) const {
  const auto at = [](const KernelFit& fit) { return 4.0 * fit.head_dim / (fit.peak_tflops * 1e12); };
  const KernelFit& last = data_.fits.back();
  const double reference = at(last);
  if (head_dim >= last.head_dim) return reference * head_dim / last.head_dim;
  // Matrix products grow with head_dim, the softmax of a score does not: a line through two fits, or through
  // one and the stated share of the softmax.
  double fixed = data_.softmax_fraction * reference;
  double slope = (reference - fixed) / last.head_dim;
  if (data_.fits.size() > 1) {
    const KernelFit& before = data_.fits[data_.fits.size() - 2];
    slope = std::max(0.0, (reference - at(before)) / (last.head_dim - before.head_dim));
    fixed = reference - slope * last.head_dim;
    if (fixed < 0) return reference * head_dim / last.head_dim;
  }
  return fixed + slope * head_dim;
}

AttentionCostModel::Rates AttentionCostModel::rates_at(double head_dim) const {
  Rates r;
  const KernelFit* nearest = &data_.fits.front();
  for (const KernelFit& fit : data_.fits)
    if (std::abs(fit.head_dim - head_dim) <= std::abs(nearest->head_dim - head_dim)) nearest = &fit;
  r.score_s = score_time(head_dim);
  r.launch_s = nearest->launch_s;
  r.serial = nearest->serial;
  r.extra_keys = nearest->extra_keys;
  r.kv_s_per_byte = 1 / (nearest->kv_gb_s * 1e9);
  r.p90 = nearest->p90;
  r.window_band = nearest->window_mape ? 2 * *nearest->window_mape : window_band;
  if (nearest->head_dim != static_cast<int>(head_dim)) r.extrapolation |= bits(Extrapolation::head_dim);

  const auto above = std::find_if(data_.backward.begin(), data_.backward.end(),
                                  [&](const BackwardFit& fit) { return fit.head_dim >= head_dim; });
  if (above == data_.backward.end() || above == data_.backward.begin() || above->head_dim == head_dim) {
    const BackwardFit& fit = above == data_.backward.end() ? data_.backward.back() : *above;
    r.backward_ratio = fit.rate_ratio;
    r.backward_keys = fit.extra_keys;
  } else {
    const BackwardFit& low = *std::prev(above);
    const double w = (head_dim - low.head_dim) / (above->head_dim - low.head_dim);
    r.backward_ratio = low.rate_ratio + w * (above->rate_ratio - low.rate_ratio);
    r.backward_keys = low.extra_keys + w * (above->extra_keys - low.extra_keys);
  }
  return r;
}

Estimate AttentionCostModel::call(const KernelShape& s, bool backward) const noexcept {
  if (s.rows <= 0 || s.query_heads <= 0 || s.mean_keys <= 0) return {};
  const auto head_dim =
      static_cast<std::size_t>(std::clamp((s.head_dim_qk + s.head_dim_v) / 2, 1, max_head_dim));
  const Rates& r = rates_[head_dim];
  const bool full = s.mask == KernelShape::Mask::full;
  const bool window = s.mask == KernelShape::Mask::window;
  const double tile = data_.tile_rows;
  const double longest = full     ? s.key_rows
                         : window ? std::min(s.key_rows, s.mean_keys + tile)
                                  : std::min(s.key_rows, 2 * s.mean_keys);
  // On a full mask all tiles are alike: no short ones at the start, on average half a tile's time at the end.
  const double tail = (full ? 0.5 : 1.0) * r.serial * longest * tile * data_.sm_count;
  double extra = full ? data_.full_extra_keys * r.extra_keys : r.extra_keys;
  double score_s = full ? r.score_s / data_.full_gain : r.score_s;
  double launch_s = r.launch_s;
  double kv_bytes = s.kv_heads * s.key_rows * (s.head_dim_qk + s.head_dim_v) * s.element_bytes;
  if (backward) {
    extra += r.backward_keys;
    score_s *= 2.5 * r.backward_ratio;
    launch_s *= 2;  // the kernel and the cast of the accumulated dQ
    kv_bytes *= 2;  // K and V read, dK and dV written
  }
  if (s.element_bytes != 2) score_s /= type_rate(s.element_bytes);
  const double head_rows = s.query_heads * std::ceil(s.rows / tile) * tile;
  Estimate e;
  e.seconds = launch_s + score_s * (head_rows * (s.mean_keys + extra) + tail) + kv_bytes * r.kv_s_per_byte;
  if (data_.uncalibrated) return {e.seconds, uncalibrated_band, bits(Extrapolation::uncalibrated)};

  e.band = r.p90;
  e.extrapolation = r.extrapolation;
  const auto widen = [&e](Extrapolation why, double band) {
    e.extrapolation |= bits(why);
    e.band += band;
  };
  if (r.extrapolation != 0) e.band += head_dim_band;
  if (!data_.scaled_from.empty()) widen(Extrapolation::platform, platform_band);
  if (s.rows < data_.min_tokens || s.key_rows < data_.min_tokens || s.rows > data_.max_tokens ||
      s.key_rows > data_.max_tokens)
    widen(Extrapolation::length, length_band);
  if (full) widen(Extrapolation::full_mask, full_band);
  if (window) widen(Extrapolation::window, r.window_band);
  if (backward) widen(Extrapolation::backward, backward_band);
  if (s.element_bytes != 2) widen(Extrapolation::element_type, type_band);
  return e;
}

Estimate AttentionCostModel::memory_bound(double bytes) const noexcept {
  if (bytes <= 0) return {};
  if (data_.uncalibrated)
    return {bytes / data_.memory_bytes_s, uncalibrated_band, bits(Extrapolation::uncalibrated)};
  return {memory_launch_s + bytes / data_.memory_bytes_s, memory_band, 0};
}

Estimate AttentionCostModel::prepare_backward(double head_rows, int head_dim_v,
                                              int element_bytes) const noexcept {
  return memory_bound(head_rows * (2.0 * head_dim_v * element_bytes + 4));
}

Estimate AttentionCostModel::merge(double head_rows, int head_dim_v, int block_bytes) const noexcept {
  return memory_bound(head_rows * (head_dim_v * (8.0 + block_bytes) + 12));
}

double AttentionCostModel::mean_error() const {
  double sum = 0;
  double rows = 0;
  for (const KernelFit& fit : data_.fits) {
    sum += fit.mape * static_cast<double>(fit.rows);
    rows += static_cast<double>(fit.rows);
  }
  return rows > 0 ? sum / rows : 0;
}

std::vector<std::string> AttentionCostModel::describe() const {
  if (data_.uncalibrated) return {"attention: constant efficiency on the data-sheet peak, uncalibrated"};
  std::vector<std::string> text;
  for (const KernelFit& fit : data_.fits)
    text.push_back(fmt::format(
        "attention forward, head_dim {}, causal, {}: {} measured calls, mean error {}, 90 % within {}{}",
        fit.head_dim, data_.family, fit.rows, format_percent(fit.mape), format_percent(fit.p90),
        fit.window_mape ? ", windows (not fitted) " + format_percent(*fit.window_mape) : ""));
  if (!data_.scaled_from.empty())
    text.push_back(
        fmt::format("attention: no measurements on this part; fits of {} scaled by peak bf16, extrapolated",
                    data_.scaled_from));
  text.emplace_back("attention backward and full masks: ratios of published tables, extrapolated");
  return text;
}

}  // namespace usp
