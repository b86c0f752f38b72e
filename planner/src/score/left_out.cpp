// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/step_score.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace usp {
namespace {

constexpr double covered_share = 0.9;

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n == 0 ? 0 : n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/// A gated run: logarithms of measured over predicted and of 1 + band.
struct Row {
  double ratio = 0, band = 0;
};
using Sources = std::map<std::string, std::vector<Row>>;

Sources gated_rows(const StepScore& score) {
  Sources sources;
  for (std::size_t i = 0; i < score.runs.size(); ++i) {
    const StepPrediction& p = score.predictions[i];
    if (p.gated)
      sources[score.runs[i].source()].push_back({std::log(*p.measured_s / p.tokens_s), std::log1p(p.band)});
  }
  return sources;
}

/// The logarithm of the common factor, and the widening, that all sources but one ask for.
std::pair<double, double> fit_without(const Sources& sources, const std::string& left_out) {
  std::vector<double> medians, widenings;
  for (const auto& [name, rows] : sources) {
    if (name == left_out) continue;
    std::vector<double> ratios;
    for (const Row& row : rows) ratios.push_back(row.ratio);
    medians.push_back(median_of(std::move(ratios)));
  }
  const double shift = median_of(std::move(medians));
  for (const auto& [name, rows] : sources)
    if (name != left_out)
      for (const Row& row : rows) widenings.push_back(std::abs(row.ratio - shift) / std::max(row.band, 1e-9));
  std::sort(widenings.begin(), widenings.end());
  const auto rank =
      static_cast<std::size_t>(std::ceil(covered_share * static_cast<double>(widenings.size())));
  return {shift, widenings[std::max<std::size_t>(1, rank) - 1]};
}

}  // namespace

void judge_left_out(StepScore& score) {
  const Sources sources = gated_rows(score);
  if (sources.size() < 2) return;
  double covered = 0, all = 0;
  std::vector<double> medians;
  for (const auto& [name, rows] : sources) {
    const auto [shift, widening] = fit_without(sources, name);
    std::vector<double> errors, bands;
    double within = 0;
    for (const Row& row : rows) {
      errors.push_back(std::abs(std::expm1(shift - row.ratio)));
      bands.push_back(std::expm1(widening * row.band));
      within += std::abs(row.ratio - shift) <= widening * row.band ? 1 : 0;
    }
    const auto count = static_cast<double>(rows.size());
    covered += within;
    all += count;
    score.left_out.push_back({name, static_cast<i64>(rows.size()), std::exp(shift), widening,
                              median_of(std::move(errors)), within / count, median_of(std::move(bands))});
    medians.push_back(score.left_out.back().median_error);
  }
  score.left_out_median = median_of(std::move(medians));
  score.left_out_coverage = covered / all;
}

}  // namespace usp
