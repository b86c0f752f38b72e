// SPDX-License-Identifier: Apache-2.0
#include "plan_inputs_json.hpp"
#include "print_parts.hpp"
#include "request_json.hpp"

#include "usp/base/json_format.hpp"
#include "usp/base/table.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/whatif.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace usp {
namespace {

constexpr std::size_t max_rows = 60;   ///< of a table for people
constexpr std::size_t max_diffs = 6;   ///< points whose terms are listed
constexpr double least_change = 1e-4;  ///< of the base's step, of a term that is listed

std::string signed_seconds(double seconds) {
  return (seconds < 0 ? "-" : "+") + format_seconds(std::abs(seconds));
}

std::string short_name(const Choice& c) {
  std::string text = fmt::format("ring {} x ulysses {}", c.mesh.ring(), c.mesh.ulysses);
  if (c.tensor() > 1) text += fmt::format(", tensor {}", c.tensor());
  if (c.data() > 1) text += fmt::format(", data {}", c.data());
  if (c.mesh.ring() > 1) text += fmt::format(", {} {}", word_of(c.layout), word_of(c.method));
  text += gated_text(c.gated, c.gate_phases);
  return text;
}

/// "mlp+offload"
std::string kept_name(const Choice& c) {
  return std::string(word_of(c.recompute)) + (c.offload.any() ? "+offload" : "");
}

std::string memory_name(const Choice& c) {
  return fmt::format("recompute {}, ZeRO-{}", kept_name(c), c.zero_stage);
}

/// What differs: the layout, what decides memory, or both.
std::string change_text(const PointPlan& from, const PointPlan& to) {
  const auto whole = [](const PointPlan& plan) {
    return plan.feasible ? fmt::format("{}, {}", short_name(plan.choice), memory_name(plan.choice))
                         : "nothing fits";
  };
  if (!from.feasible || !to.feasible) return fmt::format("{} -> {}", whole(from), whole(to));
  const bool layout = !same_lead(from.choice, to.choice);
  const bool memory = memory_name(from.choice) != memory_name(to.choice);
  if (layout && memory) return fmt::format("{} -> {}", whole(from), whole(to));
  if (layout) return fmt::format("{} -> {}", short_name(from.choice), short_name(to.choice));
  return fmt::format("{} -> {} ({})", memory_name(from.choice), memory_name(to.choice),
                     short_name(to.choice));
}

Json choice_json(const Choice& c) {
  Json json;
  json["ring"] = c.mesh.ring();
  json["ulysses"] = c.mesh.ulysses;
  json["data"] = c.data();
  json["tensor"] = c.tensor();
  json["layout"] = word_of(c.layout);
  json["method"] = word_of(c.method);
  json["recompute"] = word_of(c.recompute);
  json["offload"] = offload_json(offloaded(c.recompute, c.offload));
  json["zero_stage"] = c.zero_stage;
  json["description"] = describe(c);
  return json;
}

Json plan_json(const PointPlan& plan) {
  Json json;
  json["feasible"] = plan.feasible;
  json["infeasible_reason"] = plan.feasible ? Json(nullptr) : Json(plan.why);
  json["searched"] = plan.searched;
  json["short_bytes"] = plan.feasible || plan.short_bytes <= 0 ? Json(nullptr) : Json(plan.short_bytes);
  if (!plan.feasible) return json;
  json["choice"] = choice_json(plan.choice);
  json["time_s"] = plan.step_s;
  json["time_per_token_s"] = plan.seconds_per_token;
  json["band"] = plan.band;
  json["memory_bytes"] = plan.memory_bytes;
  json["binding_row"] = plan.binding_row;
  json["runner_up"] = plan.runner_up.empty() ? Json(nullptr) : Json(plan.runner_up);
  json["margin"] = plan.runner_up.empty() ? Json(nullptr) : Json(plan.margin);
  json["tie"] = plan.tie;
  return json;
}

AxisKind kind_named(const WhatIfResult& result, const std::string& name) {
  const auto axis =
      std::find_if(result.axes.begin(), result.axes.end(), [&](const Axis& a) { return a.name == name; });
  return axis == result.axes.end() ? AxisKind::seq : axis->kind;
}

Json deltas_json(const PointPlan& base, const PointPlan& point) {
  Json list = Json::array();
  if (!base.feasible || !point.feasible) return list;
  for (const TermDelta& d : term_deltas(base, point))
    list.push_back(
        Json{{"name", d.name}, {"base_s", d.base_s}, {"point_s", d.point_s}, {"delta_s", d.delta_s()}});
  return list;
}

Json longest_json(const std::optional<SequenceLimit>& longest) {
  if (!longest) return nullptr;
  return Json{{"seq", longest->seq},
              {"bounded", longest->bounded},
              {"choice", longest->choice},
              {"binding_row", longest->binding_row},
              {"binding_reason", longest->binding_reason},
              {"binding_bytes", longest->binding_bytes},
              {"total_bytes", longest->total_bytes},
              {"device_bytes", longest->device_bytes}};
}

std::string point_name(const WhatIfResult& result, const WhatIfPoint& point) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < result.axes.size(); ++i)
    parts.push_back(fmt::format("{} {}", result.axes[i].name, result.axes[i].values[point.at[i]].text));
  return join(parts, ", ");
}

std::string lead_text(const PointPlan& plan) {
  if (plan.runner_up.empty()) return "";
  return plan.tie ? "tie" : format_percent(plan.margin);
}

std::string point_table(const WhatIfResult& result) {
  using Align = TextTable::Align;
  TextTable table;
  for (const Axis& axis : result.axes) table.column(axis.name, Align::right);
  table.column("step time", Align::right);
  table.column("per token", Align::right);
  table.column("vs base", Align::right);
  table.column("memory", Align::right);
  table.column("lead", Align::right);
  table.column("recompute");
  table.column("best layout");
  std::size_t shown = 0;
  for (const WhatIfPoint& point : result.points) {
    if (shown++ == max_rows) break;
    std::vector<std::string> cells;
    for (std::size_t i = 0; i < result.axes.size(); ++i)
      cells.push_back(result.axes[i].values[point.at[i]].text);
    const PointPlan& plan = point.plan;
    if (!plan.feasible) {
      const bool memory = plan.short_bytes > 0;
      cells.insert(
          cells.end(),
          {"-", "-", "-", memory ? format_bytes(static_cast<double>(plan.memory_bytes)) : "-", "", "",
           std::string(point.lead_changed ? "* " : "  ") +
               (memory ? format_bytes(plan.short_bytes) + " too much"
                       : "nothing is possible: " + plan.why.substr(0, plan.why.find('\n')))});
    } else {
      const double against =
          result.base.feasible ? plan.seconds_per_token / result.base.seconds_per_token : 0;
      cells.insert(cells.end(), {format_seconds(plan.step_s), format_seconds(plan.seconds_per_token),
                                 against > 0 ? "x" + format_fixed(against, 2) : "-",
                                 format_bytes(static_cast<double>(plan.memory_bytes)), lead_text(plan),
                                 fmt::format("{}{}, {}", point.memory_changed ? "* " : "  ",
                                             kept_name(plan.choice), plan.choice.zero_stage),
                                 (point.lead_changed ? "* " : "  ") + short_name(plan.choice)});
    }
    table.row(std::move(cells));
  }
  std::string text = table.str(2);
  if (result.points.size() > max_rows)
    text +=
        fmt::format("  ... {}; --json lists all\n", counted(result.points.size() - max_rows, "more point"));
  return text +
         "  vs base: time per token; lead: of the best over the runner-up, or a tie within their bands; "
         "recompute "
         "and ZeRO stage; * changed by more than the bands\n";
}

std::string diff_table(const WhatIfResult& result) {
  std::string text;
  std::size_t shown = 0;
  const std::size_t stride = std::max<std::size_t>(1, (result.points.size() + max_diffs - 1) / max_diffs);
  for (std::size_t p = 0; p < result.points.size(); p += stride) {
    const WhatIfPoint& point = result.points[p];
    const bool base =
        point.plan.step_s == result.base.step_s && same_lead(point.plan.choice, result.base.choice);
    if (!point.plan.feasible || base || shown++ == max_diffs) continue;
    TextTable table;
    table.column("term");
    for (const char* name : {"base", "here", "change"}) table.column(name, TextTable::Align::right);
    for (const TermDelta& d : term_deltas(result.base, point.plan))
      if (std::abs(d.delta_s()) > least_change * result.base.step_s)
        table.row({d.name, format_seconds(d.base_s), format_seconds(d.point_s), signed_seconds(d.delta_s())});
    table.rule();
    table.row({"step", format_seconds(result.base.step_s), format_seconds(point.plan.step_s),
               signed_seconds(point.plan.step_s - result.base.step_s)});
    text +=
        fmt::format("\n{}: {}\n{}", point_name(result, point), short_name(point.plan.choice), table.str(2));
  }
  return text;
}

/// Both sides in one notation: whole numbers of tokens where "K" or "M" would round one of them.
std::pair<std::string, std::string> side_texts(AxisKind kind, const AxisValue& below,
                                               const AxisValue& above) {
  const auto whole_k = [](const AxisValue& value) { return static_cast<i64>(value.number) % 1024 == 0; };
  if (kind != AxisKind::seq || (whole_k(below) && whole_k(above))) return {below.text, above.text};
  return {fmt::format("{:.0f}", below.number), fmt::format("{:.0f}", above.number)};
}

std::string break_even_lines(const WhatIfResult& result) {
  std::string text;
  for (const BreakEven& even : result.break_evens) {
    const auto [below, above] = side_texts(kind_named(result, even.axis), even.below, even.above);
    text += fmt::format("  {} between {} and {}: {}{}\n", even.axis, below, above,
                        change_text(even.from, even.to),
                        even.verified ? "" : " (not confirmed by whole searches)");
  }
  if (text.empty() && !result.axes.empty()) text = "  none beyond the bands along the axes\n";
  if (result.longest) {
    const SequenceLimit& l = *result.longest;
    text += fmt::format("  longest sequence {}{} tokens ({}); {} binds: {} of {}\n",
                        l.bounded ? "that fits: " : "tried, which fits: ", format_tokens(l.seq), l.choice,
                        l.binding_row, format_bytes(static_cast<double>(l.binding_bytes)),
                        format_bytes(l.device_bytes));
  }
  return text;
}

}  // namespace

std::string whatif_json(const WhatIfRequest& request, const WhatIfResult& result) {
  Json json = json_header("usp.whatif");
  json["request"] = request_json(request);
  json["base"] = plan_json(result.base);
  json["points"] = Json::array();
  for (const WhatIfPoint& point : result.points) {
    Json values;
    for (std::size_t i = 0; i < result.axes.size(); ++i) {
      const Axis& axis = result.axes[i];
      values[axis.name] = axis_value_json(axis.kind, axis.values[point.at[i]]);
    }
    json["points"].push_back(Json{{"values", std::move(values)},
                                  {"plan", plan_json(point.plan)},
                                  {"lead_changed", point.lead_changed},
                                  {"memory_changed", point.memory_changed},
                                  {"deltas", deltas_json(result.base, point.plan)}});
  }
  json["break_evens"] = Json::array();
  for (const BreakEven& even : result.break_evens) {
    const AxisKind kind = kind_named(result, even.axis);
    json["break_evens"].push_back(Json{{"axis", even.axis},
                                       {"below", axis_value_json(kind, even.below)},
                                       {"above", axis_value_json(kind, even.above)},
                                       {"from", plan_json(even.from)},
                                       {"to", plan_json(even.to)},
                                       {"verified", even.verified}});
  }
  json["longest_sequence"] = longest_json(result.longest);
  json["searches"] = result.searches;
  json["repriced"] = result.repriced;
  json["notes"] = result.notes;
  return json.dump(1, ' ', false, Json::error_handler_t::replace);
}

std::string whatif_text(const WhatIfResult& result, bool brief) {
  std::string text = "base: ";
  if (result.base.feasible)
    text +=
        fmt::format("{}, {} per step, {}\n", describe(result.base.choice), format_seconds(result.base.step_s),
                    format_bytes(static_cast<double>(result.base.memory_bytes)));
  else
    text += result.base.why + "\n";
  if (!result.points.empty()) text += point_table(result);
  if (result.break_evens_sought) text += "break-evens (all else as in the base)\n" + break_even_lines(result);
  if (result.base.feasible && !brief) text += diff_table(result);
  for (const std::string& note : result.notes) text += fmt::format("note: {}\n", note);
  return fmt::format("{}{}, {} priced from their neighbours' rivals\n", text,
                     counted(result.searches, "whole search"), counted(result.repriced, "point"));
}

std::string whatif_csv(const WhatIfResult& result) {
  std::string text;
  for (const Axis& axis : result.axes) text += axis.name + ",";
  text +=
      "feasible,step_s,time_per_token_s,band,memory_bytes,short_bytes,margin,tie,ring,ulysses,tensor,data,"
      "layout,method,"
      "recompute,offload,zero_stage,lead_changed,memory_changed\n";
  for (const WhatIfPoint& point : result.points) {
    for (std::size_t i = 0; i < result.axes.size(); ++i) {
      const AxisValue& value = result.axes[i].values[point.at[i]];
      const bool word =
          result.axes[i].unit.empty() && value.text.find_first_not_of("0123456789") != std::string::npos;
      text += word ? value.text + "," : axis_value_json(result.axes[i].kind, value)["number"].dump() + ",";
    }
    const PointPlan& p = point.plan;
    const Choice& c = p.choice;
    if (!p.feasible) {
      text += fmt::format("0,,,,{},{},,,,,,,,,,,,{},{}\n", p.memory_bytes, p.short_bytes,
                          point.lead_changed ? 1 : 0, point.memory_changed ? 1 : 0);
      continue;
    }
    text += fmt::format("1,{},{},{},{},0,{},{},{},{},{},{},{},{},{},{},{},{},{}\n", p.step_s,
                        p.seconds_per_token, p.band, p.memory_bytes, p.margin, p.tie ? 1 : 0, c.mesh.ring(),
                        c.mesh.ulysses, c.tensor(), c.data(), word_of(c.layout), word_of(c.method),
                        word_of(c.recompute), c.offload.any() ? 1 : 0, c.zero_stage,
                        point.lead_changed ? 1 : 0, point.memory_changed ? 1 : 0);
  }
  return text;
}

}  // namespace usp
