// SPDX-License-Identifier: Apache-2.0
#include "../search/search_size.hpp"
#include "variant.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace usp {
namespace {

constexpr std::size_t coarse_step = 8;  ///< points along an axis between the first searches
constexpr std::size_t max_points = 1000000;
constexpr double max_swept_devices = 1 << 16;  ///< of a cluster that is resized
constexpr std::size_t all_searched = 64;       ///< so few points are searched whole
constexpr double near_ratio =
    1.5;  ///< a cell's ends are no farther apart: beyond, other layouts may lead inside

using Index = std::vector<std::size_t>;

struct Cell {
  Index low, high;  ///< both ends belong to it
};

/// The product of the axes, filled from coarse to fine.
class Grid {
 public:
  Grid(const WhatIfRequest& request, Variants& variants, WhatIfResult& result, ProgressRelay& relay)
      : axes_(request.axes), relay_(relay), variants_(variants), result_(result) {
    std::size_t count = 1;
    for (const Axis& axis : axes_) {
      count *= axis.values.size();
      if (count > max_points)
        throw UsageError(fmt::format("--sweep: more than {} points; take fewer values", max_points));
    }
    result_.points.resize(count);
    known_.assign(count, false);
  }

  void fill() {
    Cell whole{Index(axes_.size(), 0), Index(axes_.size(), 0)};
    start(whole, 0);
    for (const WhatIfPoint& point : result_.points)
      result_.repriced += point.plan.feasible && !point.plan.searched ? 1 : 0;
    mark_changes();
  }

 private:
  /// Splits into cells of one value per discrete axis and of a few steps per continuous one.
  void start(Cell& cell, std::size_t axis) {
    if (axis == axes_.size()) return refine(cell);
    const std::size_t last = axes_[axis].values.size() - 1;
    const bool smooth = axes_[axis].continuous() && last > 0;
    const std::size_t step = smooth ? coarse_step : 1;
    for (std::size_t low = 0; smooth ? low < last : low <= last; low += step) {
      cell.low[axis] = low;
      cell.high[axis] = smooth ? std::min(last, low + step) : low;
      start(cell, axis + 1);
    }
  }

  [[nodiscard]] std::size_t flat(const Index& at) const {
    std::size_t index = 0;
    for (std::size_t i = 0; i < axes_.size(); ++i) index = index * axes_[i].values.size() + at[i];
    return index;
  }

  [[nodiscard]] std::vector<AxisValue> values(const Index& at) const {
    std::vector<AxisValue> list;
    for (std::size_t i = 0; i < axes_.size(); ++i) list.push_back(axes_[i].values[at[i]]);
    return list;
  }

  void store(const Index& at, PointPlan plan) {
    const std::size_t index = flat(at);
    result_.points[index].at = at;
    result_.points[index].plan = std::move(plan);
    if (!known_[index]) relay_.at(++stored_, static_cast<i64>(known_.size()), "points");
    known_[index] = true;
  }

  const PointPlan& search(const Index& at) {
    const std::size_t index = flat(at);
    if (known_[index] && result_.points[index].plan.searched) return result_.points[index].plan;
    PointPlan plan;
    try {
      plan = search_point(variants_.at(axes_, values(at)));
    } catch (const MissingValue&) {
      throw;
    } catch (const UsageError& error) {  // this value cannot be combined with the others
      plan.why = error.what();
      plan.searched = true;
    } catch (const InvalidInput& error) {  // or leaves a range with them
      plan.why = error.what();
      plan.searched = true;
    }
    ++result_.searches;
    store(at, std::move(plan));
    return result_.points[index].plan;
  }

  void refine(const Cell& cell) {
    std::vector<Index> corners = {cell.low};
    std::size_t widest = 0;
    for (std::size_t i = 0; i < axes_.size(); ++i) {
      if (cell.high[i] == cell.low[i]) continue;
      if (cell.high[i] - cell.low[i] > cell.high[widest] - cell.low[widest]) widest = i;
      const std::size_t count = corners.size();
      for (std::size_t c = 0; c < count; ++c) {
        corners.push_back(corners[c]);
        corners.back()[i] = cell.high[i];
      }
    }
    for (const Index& corner : corners) search(corner);
    if (axes_.empty() || cell.high[widest] - cell.low[widest] < 2) return;
    if (known_.size() > all_searched && close(cell) && agree(corners) && fill_inside(cell, corners)) return;
    const std::size_t middle = (cell.low[widest] + cell.high[widest]) / 2;
    Cell left = cell, right = cell;
    left.high[widest] = middle;
    right.low[widest] = middle;
    refine(left);
    refine(right);
  }

  [[nodiscard]] const PointPlan& plan_of(const Index& at) const { return result_.points[flat(at)].plan; }

  [[nodiscard]] bool close(const Cell& cell) const {
    for (std::size_t i = 0; i < axes_.size(); ++i)
      if (axes_[i].values[cell.high[i]].number > near_ratio * axes_[i].values[cell.low[i]].number &&
          axes_[i].continuous())
        return false;
    return true;
  }

  /// All corners have a plan, or none has.
  [[nodiscard]] bool agree(const std::vector<Index>& corners) const {
    return std::all_of(corners.begin(), corners.end(), [&](const Index& corner) {
      return plan_of(corner).feasible == plan_of(corners.front()).feasible;
    });
  }

  [[nodiscard]] bool led_at(const std::vector<Index>& corners, const Choice& choice) const {
    return std::any_of(corners.begin(), corners.end(),
                       [&](const Index& corner) { return same_lead(plan_of(corner).choice, choice); });
  }

  /// Prices the corners' winners and rivals at all other points; false when one leads that leads at no
  /// corner.
  bool fill_inside(const Cell& cell, const std::vector<Index>& corners) {
    std::vector<Choice> rivals;
    bool settled = true;  // all corners and rivals make the same memory choices: so does what lies between
    for (const Index& corner : corners) {
      merge_rivals(rivals, plan_of(corner).kept);
      for (const Choice& kept : plan_of(corner).kept)
        settled &= kept.recompute == rivals.front().recompute && kept.offload == rivals.front().offload &&
                   kept.zero_stage == rivals.front().zero_stage;
    }
    const bool feasible = plan_of(corners.front()).feasible;
    Index at = cell.low;
    do {
      if (known_[flat(at)] && plan_of(at).searched) continue;
      PointPlan plan;
      if (feasible) {
        plan = price_rivals(variants_.at(axes_, values(at)), rivals, settled);
        if (!plan.feasible || !led_at(corners, plan.choice)) return false;
      } else {
        plan.why = "as at the points around it: " + plan_of(corners.front()).why;
      }
      store(at, std::move(plan));
    } while (advance(cell, at));
    return true;
  }

  [[nodiscard]] static bool advance(const Cell& cell, Index& at) {
    for (std::size_t i = at.size(); i-- > 0;) {
      if (++at[i] <= cell.high[i]) return true;
      at[i] = cell.low[i];
    }
    return false;
  }

  /// Along each axis in turn, from what led at its first value.
  void mark_changes() {
    const double kernel_error = variants_.base().calibration->kernel.mean_error();
    for (std::size_t axis = 0; axis < axes_.size(); ++axis) {
      if (!axes_[axis].continuous()) continue;
      for (const WhatIfPoint& first : result_.points)
        if (first.at[axis] == 0) follow_axis(first, axis, kernel_error);
    }
  }

  void follow_axis(const WhatIfPoint& first, std::size_t axis, double kernel_error) {
    PointPlan before = first.plan;
    Index at = first.at;
    while (++at[axis] < axes_[axis].values.size()) {
      WhatIfPoint& point = result_.points[flat(at)];
      Lead lead = follow(
          before, point.plan, [&] { return price_rivals(variants_.at(axes_, values(at)), {before.choice}); },
          kernel_error);
      point.lead_changed |= lead.changed;
      point.memory_changed |= lead.memory_changed;
      before = std::move(lead.plan);
    }
  }

  const std::vector<Axis>& axes_;
  ProgressRelay& relay_;
  i64 stored_ = 0;  ///< points that are known
  Variants& variants_;
  WhatIfResult& result_;
  std::vector<bool> known_;
};

/// Values at which an axis is searched for certain.
std::size_t searched_values(const Axis& axis, double points) {
  const std::size_t count = axis.values.size();
  return axis.continuous() && points > static_cast<double>(all_searched) ? (count - 1) / coarse_step + 1
                                                                         : count;
}

/// These choose what a search tries: all their values together try no more than one search without them.
bool divides_search(AxisKind kind) {
  return kind == AxisKind::ring || kind == AxisKind::ulysses || kind == AxisKind::tensor ||
         kind == AxisKind::layout || kind == AxisKind::method;
}

/// No transfer between devices crosses a NIC.
bool one_fast_domain(const topology::Cluster& cluster) {
  return cluster.nodes.size() == 1 ||
         std::any_of(cluster.domains.begin(), cluster.domains.end(),
                     [&](const topology::NvlinkDomain& domain) {
                       return domain.switched && domain.devices.size() == cluster.devices.size();
                     });
}

void note_assumptions(const topology::Cluster& cluster, WhatIfResult& result) {
  const bool grows = std::any_of(result.axes.begin(), result.axes.end(), [](const Axis& axis) {
    return axis.kind == AxisKind::nodes || axis.kind == AxisKind::gpus;
  });
  for (const Axis& axis : result.axes) {
    if (axis.kind == AxisKind::nic && !grows && one_fast_domain(cluster))
      result.notes.emplace_back(
          "nic: all devices share one host or NVLink domain, so that no transfer crosses a NIC: this sweep "
          "cannot change the answer; add hosts with --nodes");
    if (axis.kind == AxisKind::nvlink)
      result.notes.emplace_back(
          "nvlink: measured curves are scaled with the bandwidth above their shortest time; an assumption");
    if (axis.kind == AxisKind::heads || axis.kind == AxisKind::kv_heads)
      result.notes.emplace_back(axis.name +
                                ": head dims stay, so the projections and the parameters grow with it");
    if (axis.kind == AxisKind::nodes || axis.kind == AxisKind::gpus)
      result.notes.emplace_back(
          axis.name + ": data-parallel replicas change with it: compare times per token, not per step");
  }
}

/// Searches that the break-evens of a few axes and the longest sequence take together.
constexpr double break_even_searches = 40;

[[nodiscard]] int devices_per_node(const topology::Cluster& cluster) {
  return static_cast<int>(cluster.devices.size() / std::max<std::size_t>(1, cluster.nodes.size()));
}

/// Break-evens are sought where their searches take no longer than a command may.
void seek_break_evens(const WhatIfRequest& request, Variants& variants, WhatIfResult& result,
                      ProgressRelay& relay) {
  const topology::Cluster& cluster = *request.base.cluster;
  const double ticks =
      break_even_searches *
      search_ticks(request.base, static_cast<i64>(cluster.devices.size()), devices_per_node(cluster));
  result.break_evens_sought = ticks <= max_search_ticks;
  if (result.break_evens_sought) return find_break_evens(request, variants, result, relay);
  result.notes.push_back(fmt::format(
      "break-evens and the longest sequence are left out: their searches would price {} million ticks of "
      "schedules, the most is {} million; ask with fewer devices, or fix degrees, method or layout",
      static_cast<i64>(ticks / 1e6), static_cast<i64>(max_search_ticks / 1e6)));
}

}  // namespace

double sweep_ticks(const WhatIfRequest& request) {
  const topology::Cluster& cluster = *request.base.cluster;
  const int per_node = devices_per_node(cluster);
  const auto ticks_on = [&](double devices) {
    return search_ticks(request.base, static_cast<i64>(devices), per_node);
  };
  double points = 1, searches = 1, machines = 0;
  for (const Axis& axis : request.axes) points *= static_cast<double>(axis.values.size());
  for (const Axis& axis : request.axes) {
    if (axis.kind != AxisKind::nodes && axis.kind != AxisKind::gpus) {
      if (!divides_search(axis.kind)) searches *= static_cast<double>(searched_values(axis, points));
      continue;
    }
    const std::size_t step = axis.values.size() > searched_values(axis, points) ? coarse_step : 1;
    for (std::size_t i = 0; i < axis.values.size(); i += step) {
      const double devices = axis.values[i].number * (axis.kind == AxisKind::nodes ? per_node : 1);
      // Greater clusters cannot be made: such a value is not searched.
      if (devices >= 1 && devices <= max_swept_devices) machines += ticks_on(devices);
    }
  }
  const double base = ticks_on(static_cast<double>(cluster.devices.size()));
  return base + searches * (machines > 0 ? machines : request.axes.empty() ? 0 : base);
}

WhatIfResult what_if(const WhatIfRequest& request) {
  for (std::size_t i = 0; i < request.axes.size(); ++i) {
    if (request.axes[i].values.empty())
      throw UsageError(fmt::format("--sweep: {} has no values", request.axes[i].name));
    for (std::size_t j = 0; j < i; ++j)
      if (request.axes[i].kind == request.axes[j].kind)
        throw UsageError(fmt::format("--sweep: {} is given twice", request.axes[i].name));
  }
  check_ticks(sweep_ticks(request), "the sweep");
  WhatIfResult result;
  result.axes = request.axes;
  PlanRequest base = request.base;
  ProgressRelay relay(request.progress);  // points are told, not the meshes of the searches in them
  base.progress = &relay;
  Variants variants(base);
  for (const Axis& axis :
       request.axes)  // what no value of the axis can cure is an error, not a point without a plan
    if (axis.kind == AxisKind::nic || axis.kind == AxisKind::nvlink || axis.kind == AxisKind::seq)
      static_cast<void>(variants.at({axis}, {axis.values.front()}));
  result.base = search_point(variants.at({}, {}));
  ++result.searches;
  if (!request.axes.empty()) Grid(request, variants, result, relay).fill();
  note_assumptions(*request.base.cluster, result);
  result.break_evens_sought = request.break_evens;
  if (request.break_evens) seek_break_evens(request, variants, result, relay);
  return result;
}

PointPlan plan_at(const PlanRequest& base, const std::vector<Axis>& axes,
                  const std::vector<AxisValue>& values) {
  Variants variants(base);
  return search_point(variants.at(axes, values));
}

}  // namespace usp
