// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/kernel_fit.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <utility>

namespace usp {
namespace {

using Matrix = std::vector<std::vector<double>>;

constexpr double most_kv_gb_s = 1e6;         ///< faster reads of K and V are none that bind
constexpr std::size_t least_long_calls = 5;  ///< whose errors are told apart
constexpr double most_error = 100;           ///< that files state
constexpr double most_extra_share = 10, least_ratio = 0.1, most_ratio = 10;

/// Solves the normal equations of the chosen columns by Gaussian elimination; nothing where they depend on
/// each other.
std::optional<std::vector<double>> solve(const Matrix& normal, const std::vector<double>& right,
                                         const std::vector<std::size_t>& columns) {
  const std::size_t n = columns.size();
  Matrix m(n, std::vector<double>(n + 1));
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) m[i][j] = normal[columns[i]][columns[j]];
    m[i][n] = right[columns[i]];
  }
  for (std::size_t i = 0; i < n; ++i) {
    std::size_t pivot = i;
    for (std::size_t r = i + 1; r < n; ++r)
      if (std::abs(m[r][i]) > std::abs(m[pivot][i])) pivot = r;
    std::swap(m[i], m[pivot]);
    if (std::abs(m[i][i]) < 1e-13) return std::nullopt;  // columns have unit length
    for (std::size_t r = i + 1; r < n; ++r) {
      const double factor = m[r][i] / m[i][i];
      for (std::size_t j = i; j <= n; ++j) m[r][j] -= factor * m[i][j];
    }
  }
  std::vector<double> x(n);
  for (std::size_t i = n; i-- > 0;) {
    double sum = m[i][n];
    for (std::size_t j = i + 1; j < n; ++j) sum -= m[i][j] * x[j];
    x[i] = sum / m[i][i];
  }
  return x;
}

double square_error(const Matrix& a, const std::vector<double>& b, const std::vector<double>& x) {
  double sum = 0;
  for (std::size_t r = 0; r < a.size(); ++r) {
    double value = -b[r];
    for (std::size_t c = 0; c < x.size(); ++c) value += a[r][c] * x[c];
    sum += value * value;
  }
  return sum;
}

}  // namespace

std::vector<double> nonnegative_least_squares(const Matrix& a, const std::vector<double>& b) {
  const std::size_t count = a.empty() ? 0 : a.front().size();
  if (a.size() < count || count == 0 || count > 12)
    throw InvalidInput({"samples", 0, ""}, "too few measurements for the unknowns; measure more");
  std::vector<double> length(count, 0);
  for (const auto& row : a)
    for (std::size_t c = 0; c < count; ++c) length[c] += row[c] * row[c];
  for (double& l : length) l = l > 0 ? std::sqrt(l) : 1;
  Matrix scaled = a, normal(count, std::vector<double>(count, 0));
  std::vector<double> right(count, 0), best(count, 0);
  for (std::size_t r = 0; r < a.size(); ++r) {
    for (std::size_t c = 0; c < count; ++c) scaled[r][c] /= length[c];
    for (std::size_t c = 0; c < count; ++c) {
      right[c] += scaled[r][c] * b[r];
      for (std::size_t d = 0; d < count; ++d) normal[c][d] += scaled[r][c] * scaled[r][d];
    }
  }
  double least = square_error(scaled, b, best);
  for (std::uint32_t set = 1; set < (1U << count); ++set) {
    std::vector<std::size_t> columns;
    for (std::size_t c = 0; c < count; ++c)
      if ((set >> c & 1U) != 0) columns.push_back(c);
    const auto part = solve(normal, right, columns);
    if (!part || std::any_of(part->begin(), part->end(), [](double x) { return x < 0; })) continue;
    std::vector<double> x(count, 0);
    for (std::size_t i = 0; i < columns.size(); ++i) x[columns[i]] = (*part)[i];
    const double error = square_error(scaled, b, x);
    if (error >= least) continue;
    least = error;
    best = x;
  }
  for (std::size_t c = 0; c < count; ++c) best[c] /= length[c];
  return best;
}

namespace {

using Samples = std::vector<const KernelSample*>;
using Mask = KernelShape::Mask;

double head_rows(const KernelShape& s, int tile) {
  return s.query_heads * std::ceil(s.rows / tile) * tile;
}
double kv_bytes(const KernelShape& s) {
  return s.kv_heads * s.key_rows * (s.head_dim_qk + s.head_dim_v) * s.element_bytes;
}
/// Scores that the longest tile hides behind nothing, as AttentionCostModel counts them.
double tail(const KernelShape& s, const KernelData& data) {
  const bool full = s.mask == Mask::full;
  const double longest = full ? s.key_rows : std::min(s.key_rows, 2 * s.mean_keys);
  return (full ? 0.5 : 1.0) * longest * data.tile_rows * data.sm_count;
}

constexpr std::size_t launch = 0, scores = 1, extra = 2, reads = 3, full_extra = 4, last_tile = 5;

/// Columns as these numbers; the last on a card of more than one multiprocessor only.
std::vector<double> forward_row(const KernelShape& s, const KernelData& data) {
  const bool full = s.mask == Mask::full;
  const double rows = head_rows(s, data.tile_rows);
  return {1,           rows * s.mean_keys, full ? 0 : rows,
          kv_bytes(s), full ? rows : 0,    data.sm_count > 1 ? tail(s, data) : 0};
}

Samples fitted(const Samples& all, bool backward) {
  Samples chosen;
  for (const KernelSample* s : all)
    if (s->backward == backward && s->shape.mask != Mask::window) chosen.push_back(s);
  return chosen;
}

/// Fits the columns that are named, with relative errors; the others are zero.
template <class Row>
std::vector<double> relative_fit(const Samples& samples, const Row& row_of,
                                 const std::vector<std::size_t>& columns) {
  Matrix a;
  std::vector<double> b;
  for (const KernelSample* s : samples) {
    const auto [row, target] = row_of(*s);
    std::vector<double>& chosen = a.emplace_back(row.size(), 0.0);
    for (const std::size_t c : columns) chosen[c] = row[c] / s->seconds;
    b.push_back(target / s->seconds);
  }
  return nonnegative_least_squares(a, b);
}

/// The first of the sets of columns, from rich to poor, by which scores take a third of the longest call or
/// more: on a machine that does other work too, a few times may not grow with theirs. The last is scores
/// alone, whose error then shows it.
template <class Row, class Accept>
std::vector<double> first_fit(const Samples& samples, const Row& row_of,
                              const std::vector<std::vector<std::size_t>>& sets, const Accept& accept) {
  constexpr double least_share = 1.0 / 3;
  const KernelSample& longest =
      **std::max_element(samples.begin(), samples.end(), [&](const KernelSample* a, const KernelSample* b) {
        return row_of(*a).first[scores] < row_of(*b).first[scores];
      });
  const double work = row_of(longest).first[scores];
  std::vector<double> x;
  for (const std::vector<std::size_t>& columns : sets) {
    x = relative_fit(samples, row_of, columns);
    if (x[scores] * work >= least_share * longest.seconds && accept(x)) break;
  }
  return x;
}

KernelFit fit_forward(const Samples& all, const KernelData& data, int qk, int v) {
  const Samples samples = fitted(all, false);
  if (samples.empty() ||
      std::any_of(samples.begin(), samples.end(), [](const KernelSample* s) { return !(s->seconds > 0); }))
    throw InvalidInput({"samples", 0, fmt::format("head dim {}", qk)},
                       "there are no forward times, or some are not above zero; measure again");
  const auto row_of = [&](const KernelSample& s) { return std::pair(forward_row(s.shape, data), s.seconds); };
  // The share of a full mask is told by the causal extra keys, which have to be there.
  const auto shares = [](const std::vector<double>& x) {
    return x[full_extra] <= most_extra_share * x[extra];
  };
  const std::vector<double> x = first_fit(samples, row_of,
                                          {{launch, scores, extra, reads, full_extra, last_tile},
                                           {launch, scores, extra, reads, last_tile},
                                           {launch, scores},
                                           {scores}},
                                          shares);
  KernelFit fit;
  fit.head_dim = qk;
  fit.head_dim_v = v;
  fit.launch_s = x[launch];
  fit.peak_tflops = 2.0 * (qk + v) / x[scores] * 1e-12;
  fit.extra_keys = x[extra] / x[scores];
  if (x[reads] * 1e9 * most_kv_gb_s > 1) fit.kv_gb_s = 1e-9 / x[reads];
  fit.full_extra_keys = x[extra] > 0 ? x[full_extra] / x[extra] : 0;
  fit.serial = x[last_tile] / x[scores];
  fit.rows = static_cast<std::int64_t>(samples.size());
  return fit;
}

BackwardFit fit_backward(const Samples& all, const KernelData& data, const KernelFit& forward) {
  const Samples samples = fitted(all, true);
  const auto row_of = [&](const KernelSample& s) {
    const double rows = head_rows(s.shape, data.tile_rows);
    const double share = s.shape.mask == Mask::full ? forward.full_extra_keys.value_or(0) : 1;
    const double reads_s = forward.kv_gb_s ? 2 * kv_bytes(s.shape) / (*forward.kv_gb_s * 1e9) : 0;
    return std::pair(std::vector<double>{1, rows * s.shape.mean_keys, rows * share,
                                         data.sm_count > 1 ? tail(s.shape, data) : 0},
                     s.seconds - reads_s);
  };
  constexpr std::size_t own_tile = 3;
  const std::vector<double> x =
      first_fit(samples, row_of,
                {{launch, scores, extra, own_tile}, {launch, scores, own_tile}, {launch, scores}, {scores}},
                [](const std::vector<double>&) { return true; });
  BackwardFit fit;
  fit.head_dim = forward.head_dim;
  fit.head_dim_v = forward.head_dim_v;
  const double forward_score_s = 2.0 * (forward.head_dim + forward.head_dim_v) / (forward.peak_tflops * 1e12);
  fit.rate_ratio = std::clamp(x[scores] / (2.5 * forward_score_s), least_ratio, most_ratio);
  fit.extra_keys = (x[scores] > 0 ? x[extra] / x[scores] : 0) - forward.extra_keys;
  fit.launch_s = x[launch];
  if (data.sm_count > 1 && x[scores] > 0) fit.serial = x[own_tile] / x[scores];
  fit.rows = static_cast<std::int64_t>(samples.size());
  return fit;
}

/// The model's relative errors on some samples.
struct Errors {
  double mean = 0, p90 = 0;
  std::size_t count = 0;
};
template <class Chosen>
Errors errors(const AttentionCostModel& model, const Samples& samples, const Chosen& chosen) {
  std::vector<double> all;
  double sum = 0;
  for (const KernelSample* s : samples) {
    if (!chosen(*s)) continue;
    const Estimate e = s->backward ? model.backward(s->shape) : model.forward(s->shape);
    all.push_back(std::min(most_error, std::abs(e.seconds / s->seconds - 1)));
    sum += all.back();
  }
  if (all.empty()) return {};
  std::sort(all.begin(), all.end());
  return {sum / static_cast<double>(all.size()), all[all.size() * 9 / 10], all.size()};
}

void note_errors(KernelData& data, std::size_t index, const Samples& samples) {
  const AttentionCostModel model(data);
  const auto of = [&](bool backward, bool window) {
    return errors(model, samples, [=](const KernelSample& s) {
      return s.backward == backward && (s.shape.mask == Mask::window) == window;
    });
  };
  const auto note = [&](auto& fit, bool backward) {
    const Errors all = of(backward, false);
    fit.mape = all.mean;
    fit.p90 = all.p90;
    const Errors long_ones = errors(model, samples, [&](const KernelSample& s) {
      return s.backward == backward && s.shape.mask != Mask::window &&
             is_long_call(model.scores_seconds(s.shape, backward), s.seconds);
    });
    if (long_ones.count >= least_long_calls) fit.long_p90 = long_ones.p90;
  };
  const bool windows = std::any_of(samples.begin(), samples.end(),
                                   [](const KernelSample* s) { return s->shape.mask == Mask::window; });
  KernelFit& forward = data.fits[index];
  note(forward, false);
  if (windows) forward.window_mape = of(false, true).mean;
  BackwardFit& backward = data.backward[index];
  if (backward.rows > 0) note(backward, true);
}

}  // namespace

KernelData fit_kernels(KernelData data, const std::vector<KernelSample>& samples) {
  std::map<std::pair<int, int>, Samples> by_dims;
  for (const KernelSample& s : samples) by_dims[{s.shape.head_dim_qk, s.shape.head_dim_v}].push_back(&s);
  data.fits.clear();
  data.backward.clear();
  data.min_tokens = std::numeric_limits<double>::infinity();
  data.max_tokens = 0;
  for (const auto& [dims, all] : by_dims) {
    for (const KernelSample* s : all) {
      data.min_tokens = std::min({data.min_tokens, s->shape.rows, s->shape.key_rows});
      data.max_tokens = std::max({data.max_tokens, s->shape.rows, s->shape.key_rows});
    }
    data.fits.push_back(fit_forward(all, data, dims.first, dims.second));
    data.backward.push_back(fitted(all, true).empty()
                                ? BackwardFit{.head_dim = dims.first, .head_dim_v = dims.second}
                                : fit_backward(all, data, data.fits.back()));
  }
  std::size_t index = 0;
  for (const auto& [dims, all] : by_dims) note_errors(data, index++, all);
  return data;
}

}  // namespace usp
