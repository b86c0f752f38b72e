// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/plan.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace usp {

enum class AxisKind {
  seq,     ///< tokens of a row
  batch,   ///< rows per replica and step
  nic,     ///< GB/s of each NIC, one direction
  nvlink,  ///< GB/s of each device's NVLinks together, one direction
  memory,  ///< bytes per device
  nodes,   ///< hosts like the first
  gpus,    ///< devices in all
  ring,    ///< and the rest of these are constraints or the model's heads
  ulysses,
  tensor,
  zero,
  heads,
  kv_heads,
  layout,
  method,
  recompute,
};

struct AxisValue {
  double number = 0;  ///< in the axis' unit; of words, their position
  std::string text;   ///< "128K", "50 GB/s", "zigzag"
};

/// One thing that varies.
struct Axis {
  AxisKind kind = AxisKind::seq;
  std::string name;
  std::string unit;  ///< "tokens", "GB/s per NIC", ...; empty: a word or a plain number
  std::vector<AxisValue> values;
  /// Quantities between whose values others lie, on which the plan depends smoothly but for changes of lead.
  [[nodiscard]] bool continuous() const;
};

/// "seq=128k:4m:x2", "memory=40GB:80GB:+8GB", "nic=25,50,100" (GB/s per NIC) or "nic=200G,400G" (line rates),
/// "layout=zigzag,striped". Throws UsageError naming --sweep.
[[nodiscard]] Axis parse_axis(std::string_view text);
/// A value of an axis with its printed form.
[[nodiscard]] AxisValue axis_value(AxisKind kind, double number);

struct WhatIfRequest {
  PlanRequest base;
  std::vector<Axis> axes;            ///< several multiply; the last one varies fastest
  bool break_evens = true;           ///< of the continuous axes, and the longest sequence that fits
  WorkProgress* progress = nullptr;  ///< hears of the points, when given
};

/// The best plan at one point, without what only a plan of its own needs.
struct PointPlan {
  bool feasible = false;
  std::string why;  ///< why nothing fits
  double short_bytes =
      0;  ///< what the smallest plan needs beyond the device or host; 0: memory is not the reason
  Choice choice;
  double step_s = 0;
  double seconds_per_token = 0;
  double band = 0;
  std::vector<TimeTerm> terms;  ///< without reasons
  i64 memory_bytes = 0;
  std::string binding_row;   ///< the largest row of the memory table
  std::string runner_up;     ///< empty: no other layout fits
  double margin = 0;         ///< of the best over the runner-up
  bool tie = false;          ///< less than the error of what differs between them
  bool searched = false;     ///< by the whole search; else the winner and its rivals were priced again
  std::vector<Choice> kept;  ///< of a search: the best layouts and the smallest; rivals near this point
};

struct WhatIfPoint {
  std::vector<std::size_t> at;  ///< index into each axis' values
  PointPlan plan;
  /// Along some continuous axis: a layout leads by more than the bands that did not lead at the point before
  /// and does not tie with the one that did, or nothing fits any more.
  bool lead_changed = false;
  bool memory_changed = false;  ///< another recompute mode or ZeRO stage than at the point before
};

/// Where the best plan changes along one axis, everything else as in the base: another layout leads by more
/// than the bands, or recompute, ZeRO stage or feasibility change.
struct BreakEven {
  std::string axis;
  AxisValue below, above;  ///< the change lies between them
  PointPlan from, to;      ///< the plans there
  bool verified = false;   ///< whole searches on both sides confirm it
};

/// The longest sequence that some plan fits, everything else as in the base.
struct SequenceLimit {
  i64 seq = 0;
  bool bounded = true;  ///< false: `seq` fits and more was not tried
  std::string choice;
  std::string binding_row;  ///< largest row of the memory table there
  std::string binding_reason;
  i64 binding_bytes = 0, total_bytes = 0;
  double device_bytes = 0;
};

struct TermDelta {
  std::string name;
  double base_s = 0, point_s = 0;
  [[nodiscard]] double delta_s() const { return point_s - base_s; }
};

struct WhatIfResult {
  std::vector<Axis> axes;
  PointPlan base;
  std::vector<WhatIfPoint> points;
  bool break_evens_sought = true;
  std::vector<BreakEven> break_evens;
  std::optional<SequenceLimit> longest;
  i64 searches = 0;  ///< whole searches
  i64 repriced = 0;  ///< points for which the winner and its rivals were priced again
  std::vector<std::string> notes;
};

/// Ticks of schedules that the searches of a sweep price at least; what_if refuses too many.
[[nodiscard]] double sweep_ticks(const WhatIfRequest& request);

/// Plans the base and every point of the product of the axes. Whole searches run at coarse points and
/// wherever the lead or feasibility changes; between points that agree, their winners and rivals are priced
/// again. Throws UsageError for axes that the request cannot vary, Infeasible for sweeps that take too
/// long, MissingValue as plan_step.
[[nodiscard]] WhatIfResult what_if(const WhatIfRequest& request);

/// The request at one value per axis planned by a whole search; what what_if must agree with.
[[nodiscard]] PointPlan plan_at(const PlanRequest& base, const std::vector<Axis>& axes,
                                const std::vector<AxisValue>& values);

/// Terms of both plans by name, in the base's order, then those that only the point has.
[[nodiscard]] std::vector<TermDelta> term_deltas(const PointPlan& base, const PointPlan& point);

/// Same mesh, data and tensor degree, method and layout: what "the lead" means.
[[nodiscard]] bool same_lead(const Choice& a, const Choice& b);

/// One JSON object (schema: configs/schema/whatif.v2.schema.json).
[[nodiscard]] std::string whatif_json(const WhatIfRequest& request, const WhatIfResult& result);
/// Whether two plans of one point differ by less than the error of what differs.
[[nodiscard]] bool tied(const PointPlan& a, const PointPlan& b, double kernel_error);

/// Tables and break-evens for people. @param brief without the terms of single points
[[nodiscard]] std::string whatif_text(const WhatIfResult& result, bool brief = false);
/// The points as CSV, numbers in SI units and bytes.
[[nodiscard]] std::string whatif_csv(const WhatIfResult& result);

}  // namespace usp
