// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/score.hpp"

#include "usp/base/error.hpp"
#include "usp/base/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

namespace usp {
namespace {

bool within_band(double cost, double time, double band) {
  return time <= cost * (1 + band) && time >= cost / (1 + band);
}

auto key_of(const ScoreRow& r) {
  return std::tie(r.machine, r.world, r.direction, r.causal, r.dtype, r.batch, r.seq, r.heads, r.kv_heads,
                  r.head_dim, r.layout, r.exchange, r.library, r.synchronised);
}

std::string label_of(const ScoreRow& r) {
  static constexpr const char* directions[] = {"forward", "backward", "forward_backward"};
  static constexpr const char* layouts[] = {"contiguous", "zigzag", "striped"};
  return fmt::format("{} {} {} batch {} heads {}/{}x{}{} {} {}", r.machine,
                     directions[static_cast<std::size_t>(r.direction)], format_tokens(r.seq), r.batch,
                     r.heads, r.kv_heads, r.head_dim, r.causal ? "" : " full",
                     layouts[static_cast<std::size_t>(r.layout)],
                     r.exchange == ScoreRow::Exchange::qkvpack ? "qkvpack" : "no_packed");
}

std::vector<ScoreGroup> group_rows(const std::vector<ScoreRow>& rows, std::int64_t gate_tokens) {
  std::vector<ScoreGroup> groups;
  std::map<decltype(key_of(rows.front())), std::size_t> index;
  for (const ScoreRow& row : rows) {
    const auto [at, fresh] = index.emplace(key_of(row), groups.size());
    if (fresh) {
      groups.emplace_back();
      groups.back().label = label_of(row);
      groups.back().tokens = row.seq;
      groups.back().gated = row.seq >= gate_tokens && row.synchronised;
    }
    ScoreGroup& group = groups[at->second];
    if (row.seconds)
      group.rows.push_back(&row);
    else
      ++group.out_of_memory;
  }
  return groups;
}

ScoreChoice choice_of(const ScoreRow& row) {
  return {row.line, row.ring, row.ulysses, *row.seconds};
}

void judge(ScoreGroup& group, const std::vector<ScoreMethod>& methods) {
  for (const ScoreMethod& method : methods) {
    std::vector<double>& costs = group.cost.emplace_back();
    std::vector<double>& bands = group.band.emplace_back();
    if (method.band)
      for (const ScoreRow* row : group.rows) bands.push_back(method.band(*row));
    for (const ScoreRow* row : group.rows) {
      costs.push_back(method.cost(*row));
      expects(std::isfinite(costs.back()), "a score method must give a finite cost");
    }
  }
  if (group.rows.empty()) return;
  const auto faster = [](const ScoreRow* a, const ScoreRow* b) { return *a->seconds < *b->seconds; };
  group.best = choice_of(**std::min_element(group.rows.begin(), group.rows.end(), faster));
  for (const std::vector<double>& costs : group.cost) {
    const double least = *std::min_element(costs.begin(), costs.end());
    const ScoreRow* chosen = nullptr;
    for (std::size_t i = 0; i < costs.size(); ++i)
      if (costs[i] == least && (chosen == nullptr || faster(chosen, group.rows[i]))) chosen = group.rows[i];
    group.choice.push_back(choice_of(*chosen));
    group.regret.push_back(*chosen->seconds / group.best.seconds - 1);
  }
}

ScoreMetrics measure(const ScoreReport& report, std::size_t method, bool gated) {
  ScoreMetrics metrics;
  std::vector<double> all_costs;
  std::vector<double> all_times, bands;
  double error = 0;
  std::int64_t covered = 0;
  for (const ScoreGroup& group : report.groups) {
    if (group.gated != gated || group.rows.empty()) continue;
    std::vector<double> times;
    for (const ScoreRow* row : group.rows) times.push_back(*row->seconds);
    const std::vector<double>& costs = group.cost[method];
    for (std::size_t i = 0; i < costs.size(); ++i) error += std::abs(costs[i] / times[i] - 1);
    for (std::size_t i = 0; i < group.band[method].size(); ++i) {
      bands.push_back(group.band[method][i]);
      covered += within_band(costs[i], times[i], bands.back()) ? 1 : 0;
    }
    all_costs.insert(all_costs.end(), costs.begin(), costs.end());
    all_times.insert(all_times.end(), times.begin(), times.end());
    if (times.size() < 2) continue;
    ++metrics.ranked_groups;
    metrics.top1 += group.choice[method].seconds == group.best.seconds ? 1 : 0;
    metrics.mean_regret += group.regret[method];
    metrics.worst_regret = std::max(metrics.worst_regret, group.regret[method]);
    metrics.tau_in_groups += kendall_tau_b(costs, times);
  }
  metrics.rows = static_cast<std::int64_t>(all_times.size());
  if (metrics.ranked_groups > 0) {
    metrics.mean_regret /= metrics.ranked_groups;
    metrics.tau_in_groups /= metrics.ranked_groups;
  }
  if (report.units[method] == CostUnit::seconds && metrics.rows > 0) {
    metrics.mape = error / static_cast<double>(metrics.rows);
    metrics.tau = kendall_tau_b(all_costs, all_times);
  }
  if (!bands.empty()) {
    metrics.coverage = static_cast<double>(covered) / static_cast<double>(bands.size());
    std::nth_element(bands.begin(), bands.begin() + static_cast<std::ptrdiff_t>(bands.size() / 2),
                     bands.end());
    metrics.median_band = bands[bands.size() / 2];
  }
  return metrics;
}

}  // namespace

ScoreMethod max_ulysses_rule(int gpus_per_node) {
  return {"most Ulysses inside the node",
          [gpus_per_node](const ScoreRow& row) {
            return row.ulysses <= gpus_per_node ? -static_cast<double>(row.ulysses)
                                                : static_cast<double>(row.ulysses);
          },
          CostUnit::rank};
}

ScoreMethod always_ring_rule() {
  return {"always ring", [](const ScoreRow& row) { return -static_cast<double>(row.ring); }, CostUnit::rank};
}

ScoreMethod volume_rule(ScoreFunction bytes) {
  return {"volume rule", std::move(bytes), CostUnit::bytes};
}

ScoreMethod spec_sheet_method(ScoreFunction seconds) {
  return {"spec-sheet alpha-beta (uncalibrated)", std::move(seconds), CostUnit::seconds};
}

double kendall_tau_b(const std::vector<double>& x, const std::vector<double>& y) {
  expects(x.size() == y.size(), "tau needs two equally long lists");
  std::int64_t order = 0;  // concordant minus discordant
  std::int64_t x_pairs = 0;
  std::int64_t y_pairs = 0;  // not tied in x, in y
  const auto sign = [](double a, double b) { return a < b ? -1 : (a > b ? 1 : 0); };
  for (std::size_t i = 0; i < x.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) {
      const int a = sign(x[i], x[j]);
      const int b = sign(y[i], y[j]);
      order += static_cast<std::int64_t>(a) * b;
      x_pairs += static_cast<std::int64_t>(a) * a;
      y_pairs += static_cast<std::int64_t>(b) * b;
    }
  if (x_pairs == 0 || y_pairs == 0) return 0;
  return static_cast<double>(order) / std::sqrt(static_cast<double>(x_pairs) * static_cast<double>(y_pairs));
}

std::vector<ScoreClass> score_classes(const ScoreReport& report, int gpus_per_node) {
  static constexpr const char* passes[] = {"forward", "backward", "forward_backward"};
  struct Sum {
    std::int64_t rows = 0, banded = 0, covered = 0;
    double log_ratio = 0, error = 0;
  };
  std::map<std::tuple<std::string, std::string, std::string>, Sum> sums;
  if (report.units.empty() || report.units.front() != CostUnit::seconds) return {};
  for (const ScoreGroup& group : report.groups) {
    if (!group.gated) continue;
    for (std::size_t i = 0; i < group.rows.size(); ++i) {
      const ScoreRow& row = *group.rows[i];
      const char* method = row.world == 1     ? "one device"
                           : row.ring == 1    ? "ulysses"
                           : row.ulysses == 1 ? "ring"
                                              : "ring x ulysses";
      Sum& sum = sums[{method, row.world > gpus_per_node ? "hosts" : "one host",
                       passes[static_cast<std::size_t>(row.direction)]}];
      const double ratio = group.cost[0][i] / *row.seconds;
      ++sum.rows;
      sum.log_ratio += std::log(ratio);
      sum.error += std::abs(ratio - 1);
      if (group.band[0].empty()) continue;
      ++sum.banded;
      sum.covered += within_band(group.cost[0][i], *row.seconds, group.band[0][i]) ? 1 : 0;
    }
  }
  std::vector<ScoreClass> classes;
  for (const auto& [key, sum] : sums) {
    const auto rows = static_cast<double>(sum.rows);
    ScoreClass& one = classes.emplace_back();
    std::tie(one.method, one.span, one.pass) = key;
    one.rows = sum.rows;
    one.bias = std::exp(sum.log_ratio / rows) - 1;
    one.mape = sum.error / rows;
    if (sum.banded > 0) one.coverage = static_cast<double>(sum.covered) / static_cast<double>(sum.banded);
  }
  return classes;
}

NoiseFloor noise_floor(const ScoreReport& report) {
  const auto same_work = [](const ScoreRow& r) {
    return std::tie(r.machine, r.world, r.direction, r.causal, r.dtype, r.batch, r.seq, r.heads, r.kv_heads,
                    r.head_dim, r.exchange, r.library);
  };
  using Key = decltype(same_work(report.rows.front()));
  std::map<Key, std::pair<double, double>> range;
  std::map<Key, int> count;
  for (const ScoreGroup& group : report.groups)
    for (const ScoreRow* row : group.rows) {
      if (!group.gated || row->ulysses != row->world || row->world < 2) continue;
      auto& [least, most] = range.try_emplace(same_work(*row), *row->seconds, *row->seconds).first->second;
      least = std::min(least, *row->seconds);
      most = std::max(most, *row->seconds);
      ++count[same_work(*row)];
    }
  NoiseFloor noise;
  for (const auto& [key, ends] : range) {
    if (count[key] < 2) continue;
    const double spread = ends.second / ends.first - 1;
    ++noise.sets;
    noise.mean += spread;
    noise.worst = std::max(noise.worst, spread);
  }
  if (noise.sets > 0) noise.mean /= static_cast<double>(noise.sets);
  return noise;
}

ScoreReport score(std::vector<ScoreRow> rows, const std::vector<ScoreMethod>& methods,
                  std::int64_t gate_tokens, int gpus_per_node) {
  ScoreReport report;
  report.rows = std::move(rows);
  report.gate_tokens = gate_tokens;
  report.out_of_memory =
      std::count_if(report.rows.begin(), report.rows.end(), [](const ScoreRow& row) { return !row.seconds; });
  if (std::none_of(report.rows.begin(), report.rows.end(),
                   [](const ScoreRow& r) { return r.synchronised; })) {
    report.notes.emplace_back(
        "no row of the table waited for the device after each call: those of groups long enough are gated "
        "all the same, and may hold the time of their neighbours");
    for (ScoreRow& row : report.rows) row.synchronised = true;
  }
  report.groups = group_rows(report.rows, gate_tokens);
  for (ScoreGroup& group : report.groups) judge(group, methods);
  for (std::size_t m = 0; m < methods.size(); ++m) {
    report.methods.push_back(methods[m].name);
    report.units.push_back(methods[m].unit);
    report.gated.push_back(measure(report, m, true));
    report.shorter.push_back(measure(report, m, false));
  }
  report.classes = score_classes(report, gpus_per_node);
  report.noise = noise_floor(report);
  return report;
}

}  // namespace usp
