// SPDX-License-Identifier: Apache-2.0
#include "variant.hpp"

#include "usp/base/error.hpp"

#include <algorithm>
#include <cmath>

namespace usp {
namespace {

constexpr int doublings = 2;               ///< beyond both ends of an axis
constexpr int changes_within_a_step = 12;  ///< that are looked for between two values of an axis
constexpr double close_enough = 1.004;     ///< bisection of real quantities stops at this ratio
constexpr i64 longest_tried = i64{1} << 28;

PointPlan without_plan(const Error& error) {
  PointPlan plan;
  plan.why = error.what();
  return plan;
}

/// The base with one value changed.
class Line {
 public:
  Line(Variants& variants, AxisKind kind, const std::string& name, WhatIfResult& result)
      : variants_(variants), axis_{{kind, name, "", {}}}, result_(result), quantum_(quantum()) {}

  [[nodiscard]] AxisKind kind() const { return axis_.front().kind; }
  [[nodiscard]] AxisValue value(double number) const { return axis_value(kind(), number); }
  PointPlan search(double number) {
    ++result_.searches;
    try {
      return search_point(variants_.at(axis_, {value(number)}));
    } catch (const MissingValue&) {
      throw;
    } catch (const UsageError& error) {  // this value cannot be combined with the others
      return without_plan(error);
    } catch (const InvalidInput& error) {  // or leaves a range with them
      return without_plan(error);
    }
  }
  PointPlan reprice(double number, const std::vector<Choice>& rivals) {
    try {
      return price_rivals(variants_.at(axis_, {value(number)}), rivals);
    } catch (const MissingValue&) {
      throw;
    } catch (const UsageError&) {
      return {};
    } catch (const InvalidInput&) {
      return {};
    }
  }
  /// What leads at a value after `before`.
  Lead lead(const PointPlan& before, double number, const PointPlan& best) {
    return follow(
        before, best, [&] { return reprice(number, {before.choice}); },
        variants_.base().calibration->kernel.mean_error());
  }
  /// A value between two, on the grid of the axis; one of them when there is none.
  [[nodiscard]] double between(double low, double high) const {
    if (quantum_ == 0) return high / low < close_enough ? low : std::sqrt(low * high);
    const double middle = std::floor((low + high) / 2 / quantum_) * quantum_;
    return middle <= low || high / low < 1.0005 ? low : middle;
  }
  [[nodiscard]] double grid() const { return quantum_; }

 private:
  /// Sequences change by whole tokens per rank, so that no row is uneven where the base's are not.
  [[nodiscard]] double quantum() const {
    const PlanRequest& base = variants_.base();
    if (kind() == AxisKind::batch) return static_cast<double>(base.workload.microbatches);
    if (kind() != AxisKind::seq) return 0;
    const auto even = static_cast<i64>(2 * base.cluster->devices.size());
    return base.workload.seq % even == 0 ? static_cast<double>(even) : 1;
  }

  Variants& variants_;
  std::vector<Axis> axis_;
  WhatIfResult& result_;
  double quantum_;
};

bool changed(const Lead& lead) {
  return lead.changed || lead.memory_changed;
}

/// Narrows the first change between two searched values. Winners and rivals of the two ends are priced where
/// possible; when whole searches do not confirm what they say, searches narrow it instead.
BreakEven narrow(Line& line, const std::string& name, double low, const PointPlan& from, double high,
                 const PointPlan& to) {
  std::vector<Choice> rivals = from.kept;
  merge_rivals(rivals, {from.choice});
  merge_rivals(rivals, to.kept);
  const auto narrowed = [&](const auto& plan_of) {
    double below = low, above = high;
    for (double middle = line.between(below, above); middle > below; middle = line.between(below, above))
      (changed(line.lead(from, middle, plan_of(middle))) ? above : below) = middle;
    const Lead before = line.lead(from, below, line.search(below));
    const Lead after = line.lead(before.plan, above, line.search(above));
    return BreakEven{name,        line.value(below), line.value(above),
                     before.plan, after.plan,        !changed(before) && changed(after)};
  };
  BreakEven even = narrowed([&](double value) { return line.reprice(value, rivals); });
  if (!even.verified) even = narrowed([&](double value) { return line.search(value); });
  return even;
}

/// All changes between two values whose leads differ, first to last, so that they join. Returns what leads at
/// the upper value.
PointPlan narrow_all(Line& line, const std::string& name, double low, const PointPlan& from, double high,
                     const PointPlan& to, std::vector<BreakEven>& evens) {
  PointPlan before = from;
  for (int i = 0; i < changes_within_a_step && low < high; ++i) {
    Lead lead = line.lead(before, high, to);
    if (!changed(lead)) return lead.plan;
    evens.push_back(narrow(line, name, low, before, high, to));
    low = evens.back().above.number;
    before = evens.back().to;
  }
  return line.lead(before, high, to).plan;
}

void along(const Axis& axis, Variants& variants, WhatIfResult& result) {
  Line line(variants, axis.kind, axis.name, result);
  std::vector<double> values;
  for (const AxisValue& value : axis.values) values.push_back(value.number);
  for (int i = 0; i < doublings; ++i) {
    values.push_back(values[axis.values.size() - 1] * std::ldexp(1.0, i + 1));
    values.push_back(values.front() / std::ldexp(1.0, i + 1));
  }
  if (line.grid() > 0)
    for (double& value : values) value = std::max(line.grid(), std::round(value / line.grid()) * line.grid());
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  // Coarse first: at most two dozen searches however fine the axis is.
  const std::size_t stride = std::max<std::size_t>(1, values.size() / 24);
  double last = values.front();
  PointPlan before = line.search(last);
  for (std::size_t i = stride; i < values.size() + stride - 1; i += stride) {
    const double next = values[std::min(i, values.size() - 1)];
    if (next <= last) break;
    const PointPlan best = line.search(next);
    before = narrow_all(line, axis.name, last, before, next, best, result.break_evens);
    last = next;
  }
}

PlanResult full_plan(const Variant& variant) {
  StepPricer pricer(variant.request, variant.links);
  return search_with(variant.request, pricer);
}

void describe_limit(Variants& variants, SequenceLimit& limit) {
  const std::vector<Axis> axis = {{AxisKind::seq, "seq", "tokens", {}}};
  const Variant variant = variants.at(axis, {axis_value(AxisKind::seq, static_cast<double>(limit.seq))});
  const PlanResult plan = full_plan(variant);
  const PlanCandidate& smallest = plan.candidates[plan.pareto.back()];
  const MemoryRow& row =
      *std::max_element(smallest.memory.rows.begin(), smallest.memory.rows.end(),
                        [](const MemoryRow& a, const MemoryRow& b) { return a.bytes < b.bytes; });
  limit.choice = describe(smallest.choice);
  limit.binding_row = row.name;
  limit.binding_reason = row.reason;
  limit.binding_bytes = row.bytes;
  limit.total_bytes = smallest.memory.total_bytes;
  limit.device_bytes = StepPricer(variant.request, variant.links).device_bytes();
}

/// The greatest length that is tried. Attention chunks cut a row into documents, whose number takes time.
double max_length(const Model& model) {
  constexpr i64 max_chunks = 1024;
  i64 length = longest_tried;
  for (const LayerKind& kind : model.kinds)
    if (kind.kind == LayerMixer::chunked && kind.window) length = std::min(length, max_chunks * *kind.window);
  return static_cast<double>(length);
}

void find_longest(Variants& variants, WhatIfResult& result) {
  const Workload& workload = variants.base().workload;
  if (!workload.documents.empty()) return;
  Line line(variants, AxisKind::seq, "seq", result);
  const double grid = std::max(1.0, line.grid());
  double fits = 0, fails = 0;
  auto at = static_cast<double>(workload.seq);
  PointPlan known;
  if (result.base.feasible) {
    fits = at;
    known = result.base;
    const double greatest = max_length(*variants.base().model);
    while (fails == 0 && fits < greatest) {
      PointPlan plan = line.search(fits * 2);
      (plan.feasible ? fits : fails) = fits * 2;
      if (plan.feasible) known = std::move(plan);
    }
  } else {
    fails = at;
    while (fits == 0 && fails / 2 >= grid) {
      const double half = std::floor(fails / 2 / grid) * grid;
      PointPlan plan = line.search(half);
      (plan.feasible ? fits : fails) = half;
      if (plan.feasible) known = std::move(plan);
    }
  }
  if (fits == 0) return;  // not a matter of length
  SequenceLimit limit;
  limit.bounded = fails > 0;
  // The layout of least memory decides; near the limit whole searches confirm it.
  for (double middle = line.between(fits, fails); fails > 0 && middle > fits;
       middle = line.between(fits, fails)) {
    PointPlan plan = line.search(middle);
    (plan.feasible ? fits : fails) = middle;
  }
  limit.seq = static_cast<i64>(fits);
  describe_limit(variants, limit);
  result.longest = std::move(limit);
}

}  // namespace

void find_break_evens(const WhatIfRequest& request, Variants& variants, WhatIfResult& result,
                      ProgressRelay& relay) {
  const auto all = static_cast<i64>(request.axes.size()) + 1;
  i64 done = 0;
  for (const Axis& axis : request.axes) {
    relay.at(done++, all, "break-evens");
    if (axis.continuous()) along(axis, variants, result);
  }
  relay.at(done, all, "break-evens");
  find_longest(variants, result);
}

}  // namespace usp
