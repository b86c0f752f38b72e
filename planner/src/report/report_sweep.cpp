// SPDX-License-Identifier: Apache-2.0
#include "../search/search_size.hpp"
#include "report_parts.hpp"

#include "usp/base/error.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

namespace usp {
namespace {

/// Attention schedules that all plans of a sweep may price, as the request's own plan counts them, and ticks
/// of schedules: about 3 s.
constexpr double max_schedules = 4.5e5, max_ticks = max_search_ticks / 2;

Axis axis_of(const char* name, AxisKind kind, const std::vector<double>& values) {
  Axis axis = parse_axis(name);
  axis.values.clear();
  for (const double value : values) axis.values.push_back(axis_value(kind, value));
  return axis;
}

/// Values over the request's, of a product or of one axis alone, where plans take longer.
struct Factors {
  int octaves = 3;  ///< of the sequence length, up and down
  std::vector<double> nic = {0.25, 0.5, 1.0, 2.0, 4.0}, nodes = {0.25, 0.5, 1.0, 2.0, 4.0};
};
const Factors many, few{2, {0.5, 1.0, 2.0}, {0.5, 1.0, 2.0}};

Axis seq_axis(const PlanRequest& request, int octaves) {
  const auto least = static_cast<double>(2 * request.cluster->devices.size());
  std::vector<double> values;
  for (int power = -octaves; power <= octaves; ++power) {
    const double seq = std::floor(std::ldexp(static_cast<double>(request.workload.seq), power));
    if (seq >= least || power == 0) values.push_back(seq);
  }
  return axis_of("seq=1k", AxisKind::seq, values);
}

Axis nic_axis(double gb_s, const std::vector<double>& factors) {
  std::vector<double> values;
  for (const double factor : factors) values.push_back(gb_s * factor);
  return axis_of("nic=1", AxisKind::nic, values);
}

Axis nodes_axis(double hosts, const std::vector<double>& factors) {
  std::vector<double> values;
  for (const double factor : factors)
    if (const double count = hosts * factor; count >= 1 && count == std::floor(count))
      values.push_back(count);
  return axis_of("nodes=1", AxisKind::nodes, values);
}

/// Rate of the NICs in GB/s, where those of known rate are alike; 0 otherwise.
double nic_rate(const topology::Cluster& cluster) {
  double rate = 0;
  for (const topology::Nic& nic : cluster.nics) {
    if (!nic.gb_s.known()) continue;
    if (rate > 0 && *nic.gb_s.value != rate) return 0;
    rate = *nic.gb_s.value;
  }
  return rate;
}

std::vector<Axis> axes_of_report(const PlanRequest& request, const Factors& factors) {
  const topology::Cluster& cluster = *request.cluster;
  std::vector<Axis> axes;
  if (request.workload.documents.empty()) axes.push_back(seq_axis(request, factors.octaves));
  if (cluster.nodes.size() < 2) return axes;
  if (const double rate = nic_rate(cluster); rate > 0) axes.push_back(nic_axis(rate, factors.nic));
  axes.push_back(nodes_axis(static_cast<double>(cluster.nodes.size()), factors.nodes));
  return axes;
}

/// Points of the product of the axes; a point with more hosts counts as often.
double points_of(const PlanRequest& request, const std::vector<Axis>& axes) {
  double points = 1;
  for (const Axis& axis : axes) {
    double sum = 0;
    for (const AxisValue& value : axis.values)
      sum += axis.kind == AxisKind::nodes ? value.number / static_cast<double>(request.cluster->nodes.size())
                                          : 1;
    points *= sum;
  }
  return points;
}

/// Empty where the request cannot vary these axes.
std::optional<WhatIfResult> swept(const PlanRequest& request, std::vector<Axis> axes) {
  WhatIfRequest sweep;
  sweep.base = request;
  sweep.progress = request.progress;
  sweep.axes = std::move(axes);
  sweep.break_evens = false;
  try {
    if (sweep_ticks(sweep) > max_ticks) return std::nullopt;
    return what_if(sweep);
  } catch (const UsageError&) {
    return std::nullopt;
  } catch (const Infeasible&) {
    return std::nullopt;
  }
}

Json point_json(const WhatIfPoint& point) {
  const PointPlan& p = point.plan;
  Json json = {{"at", point.at}, {"feasible", p.feasible}};
  if (!p.feasible) {
    json["reason"] = p.why.substr(0, p.why.find('\n'));
    return json;
  }
  json["name"] = short_choice(p.choice);
  json["time_s"] = p.step_s;
  json["time_per_token_s"] = p.seconds_per_token;
  json["band"] = p.band;
  json["memory_bytes"] = p.memory_bytes;
  json["binding_row"] = p.binding_row;
  json["runner_up"] = p.runner_up;
  json["margin"] = p.margin;
  json["tie"] = p.tie;
  json["lead_changed"] = point.lead_changed;
  return json;
}

Json result_json(const WhatIfResult& result) {
  Json axes = Json::array(), points = Json::array();
  for (const Axis& axis : result.axes) {
    Json values = Json::array();
    for (const AxisValue& value : axis.values)
      values.push_back({{"number", value.number}, {"text", value.text}});
    axes.push_back({{"name", axis.name}, {"unit", axis.unit}, {"values", values}});
  }
  for (const WhatIfPoint& point : result.points) points.push_back(point_json(point));
  return {{"axes", axes}, {"points", points}};
}

}  // namespace

ReportSweep report_sweep(const PlanRequest& request, const PlanResult& plan) {
  const auto each = static_cast<double>(plan.considered);
  const std::vector<Axis> all = axes_of_report(request, many);
  ReportSweep sweep;
  if (all.empty()) return sweep;
  if (each * points_of(request, all) <= max_schedules)
    if (std::optional<WhatIfResult> product = swept(request, all)) return {{*std::move(product)}};
  double spent = 0;
  for (const Axis& axis : axes_of_report(request, few)) {
    spent += each * points_of(request, {axis});
    if (spent > max_schedules) break;
    if (std::optional<WhatIfResult> one = swept(request, {axis})) sweep.results.push_back(*std::move(one));
  }
  return sweep;
}

Json report_sweep_json(const ReportInput& input) {
  if (input.sweep == nullptr || input.sweep->results.empty()) return nullptr;
  const PlanRequest& request = *input.request;
  const topology::Cluster& cluster = *request.cluster;
  Json json = {
      {"base", {{"seq", request.workload.seq}, {"nic", nic_rate(cluster)}, {"nodes", cluster.nodes.size()}}},
      {"results", Json::array()}};
  for (const WhatIfResult& result : input.sweep->results) json["results"].push_back(result_json(result));
  return json;
}

}  // namespace usp
