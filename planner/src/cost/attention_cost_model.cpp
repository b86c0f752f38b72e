// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/attention_cost_model.hpp"

#include "usp/base/error.hpp"
#include "usp/base/units.hpp"
#include "usp/schedule/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace usp {
namespace {

// Widening of the band beyond the fit's own p90, each by what the public tables scatter:
constexpr double head_dim_band =
    0.2;  // head_dim 256 against 128 on H100: .94 (cuDNN) to 1.17 (FA3) of its rate
// Below the widest measured one, where the softmax's part is known, twice the worst of: L40S 64 by 128 0 %,
// RTX 4090 64 and 32 by 128 -4 and -7 %.
constexpr double narrow_head_dim_band = 0.14;
constexpr double length_band = 0.08;   // 16K to 32K on H100: 0 to -10 %
constexpr double full_band = 0.08;     // full against causal at 16K: 1.00 (H100) to 1.05 (FA3's paper)
constexpr double window_band = 0.25;   // where no windowed rows were measured
constexpr double platform_band = 0.4;  // another architecture's efficiency
// Cards whose tensor cores are the limit reach 85 (L20, H20) to 102 % (RTX 4090) of their stated peak: the
// one constant that those published rates were looked at for.
constexpr double tensor_share = 0.95;
constexpr double sibling_band = 0.15;  // a card of the same generation, per multiprocessor and clock
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

bool square(const KernelFit& fit) {
  return fit.head_dim_v == fit.head_dim || fit.head_dim_v == 0;
}

/// Of a score, the seconds that do not grow with the head dim: a line through the two widest fits, or the
/// stated share of the only one.
double softmax_seconds(const KernelData& data) {
  const KernelFit *last = nullptr, *before = nullptr;
  for (const KernelFit& fit : data.fits)
    if (square(fit)) before = std::exchange(last, &fit);
  const auto at = [](const KernelFit& fit) { return 4.0 * fit.head_dim / (fit.peak_tflops * 1e12); };
  if (last == nullptr) return 0;
  if (before == nullptr) return data.softmax_fraction * at(*last);
  const double slope = std::max(0.0, (at(*last) - at(*before)) / (last->head_dim - before->head_dim));
  return std::max(0.0, at(*last) - slope * last->head_dim);
}

}  // namespace

KernelData at_sustained_clock(KernelData data) {
  // A call after a rest is that much faster.
  const double band = 1 / data.sustained - 1;
  for (KernelFit& fit : data.fits) {
    fit.peak_tflops *= data.sustained;
    widen_fit(fit, band);
  }
  for (BackwardFit& fit : data.backward) widen_fit(fit, band);
  data.sustained = 1;
  return data;
}

KernelData borrowed(KernelData data, const KernelBorrowing& by, const std::string& from) {
  data.scaled_from = from + (data.scaled_from.empty() ? "" : ", itself scaled");
  data.same_generation = by.same_generation;
  data.tensor_tflops = by.tensor_tflops;
  if (by.sm_count > 0) data.sm_count = static_cast<int>(by.sm_count);
  const double softmax_s = softmax_seconds(data);
  for (KernelFit& fit : data.fits) {
    const double width = (fit.head_dim + std::max(fit.head_dim_v, 1)) / 2.0;
    const double whole_s = 4 * width / (fit.peak_tflops * 1e12);
    const double fixed_s = std::min(softmax_s, whole_s);
    fit.peak_tflops =
        4 * width / (fixed_s / std::min(by.speed, by.softmax_speed) + (whole_s - fixed_s) / by.speed) * 1e-12;
    if (fit.kv_gb_s) *fit.kv_gb_s *= by.memory;
  }
  return data;
}

AttentionCostModel::AttentionCostModel(KernelData data) : data_(std::move(data)) {
  for (const KernelFit& fit : data_.fits)
    if (square(fit)) square_.push_back(fit);
  expects(!square_.empty(), "an attention cost model needs a fit");
  rates_.reserve(max_head_dim + 1);
  for (int d = 0; d <= max_head_dim; ++d) rates_.push_back(rates_at(d));
  prepare_pairs();
}

/// Head dims that differ: the forward fit of the pair, else that of their mean; and the backward fit of it.
void AttentionCostModel::prepare_pairs() {
  const auto entry = [&](int qk, int v) -> Rates& {
    for (PairRates& pair : pairs_)
      if (pair.head_dim_qk == qk && pair.head_dim_v == v) return pair.rates;
    return pairs_.emplace_back(PairRates{qk, v, rates_[static_cast<std::size_t>((qk + v) / 2)]}).rates;
  };
  for (const KernelFit& fit : data_.fits) {
    if (square(fit)) continue;
    const double width = (fit.head_dim + fit.head_dim_v) / 2.0;
    Rates& rates = entry(fit.head_dim, fit.head_dim_v);
    const Rates mean = rates;
    rates = rates_of(fit, width, 4 * width / (fit.peak_tflops * 1e12));
    rates.backward_ratio = mean.backward_ratio;
    rates.backward_keys = mean.backward_keys;
    rates.window_band = mean.window_band;
  }
  for (const BackwardFit& fit : data_.backward) {
    if (fit.head_dim_v == fit.head_dim || fit.head_dim_v == 0) continue;
    Rates& rates = entry(fit.head_dim, fit.head_dim_v);
    rates.backward_ratio = fit.rate_ratio;
    rates.backward_keys = fit.extra_keys;
    rates.backward_launch_s = fit.launch_s.value_or(2 * rates.launch_s);
    rates.backward_serial = fit.serial.value_or(rates.serial);
    rates.backward_measured = fit.rows > 0;
    rates.backward_p90 = fit.p90;
    rates.backward_long_p90 = fit.long_p90.value_or(fit.p90);
  }
}

AttentionCostModel AttentionCostModel::constant(double peak_tflops, double efficiency, double memory_gb_s) {
  KernelData data;
  data.family = "data sheet";
  data.sm_count = 1;
  data.tile_rows = 1;
  data.min_tokens = 0;
  data.max_tokens = 1e18;
  KernelFit fit;
  fit.head_dim = fit.head_dim_v = 128;
  fit.rows = 1;  // one rate for every head dim: nothing goes beyond it
  fit.full_extra_keys = 1;
  fit.peak_tflops = peak_tflops * efficiency;
  data.fits.push_back(fit);
  data.backward.push_back({.head_dim = 128, .head_dim_v = 128});
  data.memory_bytes_s = memory_gb_s * 1e9;
  data.uncalibrated = true;
  return AttentionCostModel(std::move(data));
}

double AttentionCostModel::score_time(double head_dim) const {
  const auto at = [](const KernelFit& fit) { return 4.0 * fit.head_dim / (fit.peak_tflops * 1e12); };
  const KernelFit& last = square_.back();
  const double reference = at(last);
  if (head_dim >= last.head_dim) return reference * head_dim / last.head_dim;
  // Matrix products grow with head_dim, the softmax of a score does not.
  const double fixed = softmax_seconds(data_);
  return fixed + (reference - fixed) * head_dim / last.head_dim;
}

AttentionCostModel::Rates AttentionCostModel::rates_of(const KernelFit& fit, double width,
                                                       double score_s) const {
  Rates r;
  r.score_s = score_s;
  r.tensor_s = data_.tensor_tflops > 0 ? 4 * width / (tensor_share * data_.tensor_tflops * 1e12) : 0;
  r.launch_s = fit.launch_s;
  r.backward_launch_s = 2 * fit.launch_s;  // the kernel and the cast of the accumulated dQ
  r.serial = r.backward_serial = fit.serial;
  r.extra_keys = fit.extra_keys;
  r.full_extra_keys = fit.full_extra_keys;
  r.kv_s_per_byte = fit.kv_gb_s ? 1 / (*fit.kv_gb_s * 1e9) : 0;
  r.p90 = fit.p90;
  r.long_p90 = fit.long_p90.value_or(fit.p90);
  r.window_band = fit.window_mape ? 2 * *fit.window_mape : window_band;
  return r;
}

AttentionCostModel::Rates AttentionCostModel::rates_at(double head_dim) const {
  const KernelFit* nearest = &square_.front();
  for (const KernelFit& fit : square_)
    if (std::abs(fit.head_dim - head_dim) <= std::abs(nearest->head_dim - head_dim)) nearest = &fit;
  Rates r = rates_of(*nearest, head_dim, score_time(head_dim));
  if (nearest->head_dim != static_cast<int>(head_dim) || nearest->rows == 0)
    r.extrapolation |= bits(Extrapolation::head_dim);

  std::vector<const BackwardFit*> fits;
  for (const BackwardFit& fit : data_.backward)
    if (fit.head_dim_v == fit.head_dim || fit.head_dim_v == 0) fits.push_back(&fit);
  const auto above = std::find_if(fits.begin(), fits.end(),
                                  [&](const BackwardFit* fit) { return fit->head_dim >= head_dim; });
  if (above == fits.end() || above == fits.begin() || (*above)->head_dim == head_dim) {
    const BackwardFit& fit = above == fits.end() ? *fits.back() : **above;
    r.backward_ratio = fit.rate_ratio;
    r.backward_keys = fit.extra_keys;
    if (fit.launch_s) r.backward_launch_s = *fit.launch_s;
    if (fit.serial) r.backward_serial = *fit.serial;
    r.backward_measured = fit.rows > 0 && fit.head_dim == static_cast<int>(head_dim);
    r.backward_p90 = fit.p90;
    r.backward_long_p90 = fit.long_p90.value_or(fit.p90);
  } else {
    const BackwardFit &low = **std::prev(above), &high = **above;
    const double w = (head_dim - low.head_dim) / (high.head_dim - low.head_dim);
    r.backward_ratio = low.rate_ratio + w * (high.rate_ratio - low.rate_ratio);
    r.backward_keys = low.extra_keys + w * (high.extra_keys - low.extra_keys);
  }
  return r;
}

const AttentionCostModel::Rates& AttentionCostModel::rates(const KernelShape& s) const noexcept {
  if (s.head_dim_qk != s.head_dim_v)
    for (const PairRates& pair : pairs_)
      if (pair.head_dim_qk == s.head_dim_qk && pair.head_dim_v == s.head_dim_v) return pair.rates;
  return rates_[static_cast<std::size_t>(std::clamp((s.head_dim_qk + s.head_dim_v) / 2, 1, max_head_dim))];
}

/// Scores of all tiles over the device, the longest tile's part that nothing hides, and reads of K and V.
/// @param kv_s time of those reads where the card that was measured does them
double AttentionCostModel::work_seconds(const KernelShape& s, const Rates& r, bool backward,
                                        double kv_s) const noexcept {
  const bool full = s.mask == KernelShape::Mask::full;
  const bool window = s.mask == KernelShape::Mask::window;
  const double tile = data_.tile_rows;
  const double longest = full     ? s.key_rows
                         : window ? std::min(s.key_rows, s.mean_keys + tile)
                                  : std::min(s.key_rows, 2 * s.mean_keys);
  // On a full mask all tiles are alike: no short ones at the start, on average half a tile's time at the end.
  const double serial = backward ? r.backward_serial : r.serial;
  const double tail = (full ? 0.5 : 1.0) * serial * longest * tile * data_.sm_count;
  const double passes = backward ? 2.5 : 1, ratio = backward ? r.backward_ratio : 1;
  // Prologue, softmax and tail take the measured card's clocks; products also the tensor cores of this one.
  const double overhead_s = passes * ratio * r.score_s;
  double own_s = overhead_s;
  double extra = std::max(0.0, r.extra_keys + (backward ? r.backward_keys : 0));
  // Without rows of its own a full mask runs at the causal rate of the longest measured call, and longer
  // causal calls do too: long calls are bound by power, whatever their mask.
  const std::optional<double> share = r.full_extra_keys ? r.full_extra_keys : data_.full_extra_keys;
  const double longest_mean_keys = data_.max_tokens / 2;
  if (full) {
    if (!share) own_s *= 1 + extra / longest_mean_keys;
    if (!r.full_extra_keys) own_s /= data_.full_gain;
    extra *= share.value_or(0);
  } else if (!share && !window) {
    extra *= std::max(1.0, s.mean_keys / longest_mean_keys);
  }
  const double score_s = std::max(own_s, passes * r.tensor_s);
  const double head_rows = s.query_heads * std::ceil(s.rows / tile) * tile;
  // Where the tensor cores are slower than what was measured, reads go on beside the products.
  kv_s = std::max(0.0, kv_s - head_rows * s.mean_keys * (score_s - own_s));
  return head_rows * (score_s * s.mean_keys + overhead_s * extra) + overhead_s * tail + kv_s;
}

double AttentionCostModel::scores_seconds(const KernelShape& s, bool backward) const noexcept {
  const Rates& r = rates(s);
  const double head_rows = s.query_heads * std::ceil(s.rows / data_.tile_rows) * data_.tile_rows;
  return head_rows * s.mean_keys * r.score_s * (backward ? 2.5 * r.backward_ratio : 1);
}

double AttentionCostModel::fit_band(const KernelShape& s, const Rates& r, bool backward,
                                    double seconds) const noexcept {
  const bool of_backward = backward && r.backward_measured;
  const double all = of_backward ? r.backward_p90 : r.p90,
               of_long = of_backward ? r.backward_long_p90 : r.long_p90;
  if (all == of_long) return all;
  return is_long_call(scores_seconds(s, backward), seconds) ? of_long : all;
}

Estimate AttentionCostModel::call(const KernelShape& s, bool backward) const noexcept {
  if (s.rows <= 0 || s.query_heads <= 0 || s.mean_keys <= 0) return {};
  const Rates& r = rates(s);
  const bool full = s.mask == KernelShape::Mask::full;
  const bool window = s.mask == KernelShape::Mask::window;
  double kv_bytes = s.kv_heads * s.key_rows * (s.head_dim_qk + s.head_dim_v) * s.element_bytes;
  if (backward) kv_bytes *= 2;  // K and V read, dK and dV written
  const bool own_type = s.element_bytes == data_.element_bytes;
  // No ratio is published of kernels that were measured on other than 16-bit elements.
  const double type = own_type || data_.element_bytes != 2 ? 1 : type_rate(s.element_bytes);
  Estimate e;
  e.seconds = (backward ? r.backward_launch_s : r.launch_s) +
              work_seconds(s, r, backward, kv_bytes * r.kv_s_per_byte * type) / type;
  if (data_.uncalibrated) return {e.seconds, uncalibrated_band, bits(Extrapolation::uncalibrated)};

  const bool measured_backward = backward && r.backward_measured;
  e.band = fit_band(s, r, backward, e.seconds);
  e.extrapolation = r.extrapolation;
  const auto widen = [&e](Extrapolation why, double band) {
    e.extrapolation |= bits(why);
    e.band += band;
  };
  if (r.extrapolation != 0) {
    const bool narrow = std::max(s.head_dim_qk, s.head_dim_v) < square_.back().head_dim;
    const bool known_softmax = square_.size() > 1 || data_.softmax_fraction > 0;
    e.band += narrow && known_softmax ? narrow_head_dim_band : head_dim_band;
  }
  if (!data_.scaled_from.empty())
    widen(Extrapolation::platform, data_.same_generation ? sibling_band : platform_band);
  if (s.rows < data_.min_tokens || s.key_rows < data_.min_tokens || s.rows > data_.max_tokens ||
      s.key_rows > data_.max_tokens)
    widen(Extrapolation::length, length_band);
  if (full && !r.full_extra_keys) widen(Extrapolation::full_mask, full_band);
  if (window) widen(Extrapolation::window, r.window_band);
  if (backward && !measured_backward) widen(Extrapolation::backward, data_.backward_band);
  if (!own_type) widen(Extrapolation::element_type, type_band);
  return e;
}

Estimate AttentionCostModel::memory_bound(double bytes, int kernels) const noexcept {
  if (bytes <= 0) return {};
  if (data_.uncalibrated)
    return {bytes / data_.memory_bytes_s, uncalibrated_band, bits(Extrapolation::uncalibrated)};
  return {kernels * memory_launch_s + bytes / data_.memory_bytes_s, memory_band, 0};
}

Estimate AttentionCostModel::prepare_backward(double head_rows, int head_dim_v,
                                              int element_bytes) const noexcept {
  return memory_bound(head_rows * (2.0 * head_dim_v * element_bytes + 4));
}

Estimate AttentionCostModel::merge(double head_rows, int head_dim_v, int block_bytes) const noexcept {
  if (data_.carries_state) return {};
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
  const auto dims = [](int qk, int v) {
    return v == qk || v == 0 ? fmt::to_string(qk) : fmt::format("{}/{}", qk, v);
  };
  for (const KernelFit& fit : data_.fits)
    text.push_back(fmt::format(
        "attention forward, head_dim {}, {}, {}: {} measured calls, mean error {}, 90 % within {}{}",
        dims(fit.head_dim, fit.head_dim_v), fit.full_extra_keys ? "causal and full" : "causal", data_.family,
        fit.rows, format_percent(fit.mape), format_percent(fit.p90),
        fit.window_mape ? ", windows (not fitted) " + format_percent(*fit.window_mape) : ""));
  bool published = false;
  for (const BackwardFit& fit : data_.backward) {
    published = published || fit.rows == 0;
    if (fit.rows == 0) continue;
    text.push_back(fmt::format("attention backward, head_dim {}, {}: {} measured calls, mean error {}",
                               dims(fit.head_dim, fit.head_dim_v), data_.family, fit.rows,
                               format_percent(fit.mape)));
  }
  if (!data_.scaled_from.empty())
    text.push_back(fmt::format(
        "attention: no measurements on this part; fits of {} scaled by {}, extrapolated", data_.scaled_from,
        data_.same_generation ? "multiprocessors, clock and power limit, at most the tensor cores' peak"
                              : "peak bf16"));
  if (published) text.emplace_back("attention backward: ratios of published tables, extrapolated");
  return text;
}

}  // namespace usp
