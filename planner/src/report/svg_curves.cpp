// SPDX-License-Identifier: Apache-2.0
#include "svg.hpp"

#include "usp/base/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace usp {
namespace {

constexpr double width = 860, height = 320, left = 92, right = 820, top = 34, bottom = 262;
constexpr double gib = 1024.0 * 1024 * 1024;

struct Frame {
  Scale x, y;
  std::string x_label, y_label;
  std::string (*print_x)(double);
  std::string (*print_y)(double);
};

std::string print_bytes(double bytes) {
  return bytes == 0 ? "0" : format_bytes(bytes);
}
std::string print_seconds(double seconds) {
  return seconds == 0 ? "0" : format_seconds(seconds);
}
std::string print_log_tokens(double log2) {
  return format_tokens(static_cast<i64>(std::llround(std::exp2(log2))));
}

void axes(Svg& svg, const Frame& frame, const std::vector<double>& x_ticks) {
  for (const double tick : frame.y.ticks()) {
    svg.line(left, frame.y.at(tick), right, frame.y.at(tick), "grid");
    svg.text(left - 6, frame.y.at(tick) + 4, frame.print_y(tick), "end");
  }
  for (const double tick : x_ticks) {
    svg.line(frame.x.at(tick), bottom, frame.x.at(tick), bottom + 5, "axis");
    svg.text(frame.x.at(tick), bottom + 20, frame.print_x(tick), "mid");
  }
  svg.line(left, bottom, right, bottom, "axis");
  svg.text(left, 16, frame.y_label, "strong");
  svg.text(right, bottom + 44, frame.x_label, "end strong");
}

struct Series {
  const char* title;
  const char* y_label;
  std::string (*print)(double);
  double (*value)(const PointPlan&);
  double limit;
  std::string limit_label;
  double unit = 1;
};

double seconds_per_token(const PointPlan& plan) {
  return plan.seconds_per_token;
}
double memory_of(const PointPlan& plan) {
  return static_cast<double>(plan.memory_bytes);
}

/// One curve over the sequence length; a filled point where the lead changed.
std::string curve(const WhatIfResult& sweep, const Series& series) {
  std::vector<double> ticks;
  double most = series.limit;
  for (const WhatIfPoint& point : sweep.points) {
    ticks.push_back(std::log2(sweep.axes.front().values[point.at.front()].number));
    if (point.plan.feasible) most = std::max(most, series.value(point.plan));
  }
  const Frame frame{{ticks.front(), ticks.back(), left + 20, right - 20},
                    {0, most * 1.08, bottom, top, series.unit},
                    "sequence length, tokens",
                    series.y_label,
                    print_log_tokens,
                    series.print};
  Svg svg(width, height, series.title,
          "A curve over powers of two of the sequence length; filled points: another layout leads than at "
          "the length before; crosses: nothing fits.");
  axes(svg, frame, ticks);
  if (series.limit > 0) {
    svg.line(left, frame.y.at(series.limit), right, frame.y.at(series.limit), "limit");
    svg.text(left + 6, frame.y.at(series.limit) + 15, series.limit_label, "strong");
  }
  std::vector<std::pair<double, double>> line;
  for (std::size_t i = 0; i < sweep.points.size(); ++i)
    if (sweep.points[i].plan.feasible)
      line.emplace_back(frame.x.at(ticks[i]), frame.y.at(series.value(sweep.points[i].plan)));
  svg.polyline(line, "curve");
  for (std::size_t i = 0; i < sweep.points.size(); ++i) {
    const PointPlan& plan = sweep.points[i].plan;
    const double x = frame.x.at(ticks[i]);
    if (plan.feasible)
      svg.circle(x, frame.y.at(series.value(plan)), 5, sweep.points[i].lead_changed ? "c1" : "hollow",
                 fmt::format("{}: {}", short_choice(plan.choice), series.print(series.value(plan))));
    else
      svg.text(x, bottom - 6, "\xC3\x97", "mid strong");
  }
  return svg.str();
}

std::vector<std::vector<std::string>> sweep_rows(const WhatIfResult& sweep) {
  std::vector<std::vector<std::string>> rows = {
      {"sequence", "best layout", "runner-up", "lead", "step", "per token", "memory"}};
  for (const WhatIfPoint& point : sweep.points) {
    const PointPlan& p = point.plan;
    const std::string length = sweep.axes.front().values[point.at.front()].text;
    if (!p.feasible)
      rows.push_back({length, "nothing fits", p.why, "-", "-", "-", "-"});
    else
      rows.push_back({length + (point.lead_changed ? " *" : ""), short_choice(p.choice), p.runner_up,
                      p.runner_up.empty() ? "-" : format_percent(p.margin), format_seconds(p.step_s),
                      format_seconds(p.seconds_per_token),
                      format_bytes(static_cast<double>(p.memory_bytes))});
  }
  return rows;
}

std::string plan_name(const PointPlan& plan) {
  return plan.feasible ? short_choice(plan.choice) : "nothing fits";
}

}  // namespace

std::string pareto_section(const ReportInput& input) {
  const PlanResult& plan = *input.plan;
  double max_time = 0, max_memory = 0, min_time = 1e30, min_memory = 1e30;
  const double tokens = static_cast<double>(input.request->workload.tokens()) * plan.best().choice.data();
  std::vector<std::pair<double, double>> points;
  for (const PlanCandidate& c : plan.candidates) {
    points.emplace_back(c.seconds_per_token * tokens, static_cast<double>(c.memory.total_bytes));
    if (!c.fits) continue;
    max_time = std::max(max_time, points.back().first);
    min_time = std::min(min_time, points.back().first);
    max_memory = std::max(max_memory, points.back().second);
    min_memory = std::min(min_memory, points.back().second);
  }
  const double pad = std::max(0.05 * max_time, 0.08 * (max_time - min_time));
  const Frame frame{{std::max(0.0, min_time - pad), max_time + pad, left, right},
                    {0.9 * min_memory, 1.08 * max_memory, bottom, top, gib},
                    "time for as many tokens as a step of the best",
                    "memory of one rank",
                    print_seconds,
                    print_bytes};
  Svg svg(width, height, "Time against memory",
          "Each point is a layout that fits; the line joins those that no other one beats in both time and "
          "memory.");
  axes(svg, frame, frame.x.ticks());
  std::vector<std::pair<double, double>> front;
  for (const std::size_t i : plan.pareto)
    front.emplace_back(frame.x.at(points[i].first), frame.y.at(points[i].second));
  svg.polyline(front, "curve");
  std::vector<std::vector<std::string>> rows = {{"#", "layout", "time", "memory"}};
  for (std::size_t i = 0; i < plan.candidates.size(); ++i) {
    if (!plan.candidates[i].fits) continue;
    const bool on_front = std::find(plan.pareto.begin(), plan.pareto.end(), i) != plan.pareto.end();
    const std::string name = fmt::format("#{} {}", i + 1, describe(plan.candidates[i].choice));
    svg.circle(frame.x.at(points[i].first), frame.y.at(points[i].second), on_front ? 6 : 4,
               on_front ? "c1" : "hollow", name);
    if (on_front)
      rows.push_back({std::to_string(i + 1), describe(plan.candidates[i].choice),
                      format_seconds(points[i].first), format_bytes(points[i].second)});
  }
  return fmt::format("<section id=\"pareto\"><h2>Time against memory</h2>\n{}{}</section>\n", svg.str(),
                     html_table("The Pareto front", rows, 2));
}

std::string sweep_section(const ReportInput& input) {
  std::string text = "<section id=\"sweep\"><h2>Other sequence lengths</h2>\n";
  if (input.sweep == nullptr || input.sweep->points.empty())
    return text + "<p>Not swept: packed documents fix the length.</p></section>\n";
  const WhatIfResult& sweep = *input.sweep;
  const double card = card_bytes(*input.request);
  text += curve(sweep, {"Time per token over sequence length", "time per token of the step", print_seconds,
                        seconds_per_token, 0, ""});
  text += curve(sweep, {"Memory over sequence length", "memory of one rank", print_bytes, memory_of, card,
                        "the card: " + format_bytes(card), gib});
  text += html_table("Best layout by sequence length (* the lead changed)", sweep_rows(sweep), 3);
  for (const BreakEven& even : sweep.break_evens)
    text +=
        fmt::format("<p>Between {} and {} tokens the lead passes from {} to {}{}.</p>\n",
                    escaped(even.below.text), escaped(even.above.text), escaped(plan_name(even.from)),
                    escaped(plan_name(even.to)), even.verified ? "" : " (not confirmed by whole searches)");
  if (sweep.longest) {
    const SequenceLimit& l = *sweep.longest;
    text += fmt::format(
        "<p><strong>Longest sequence that fits: {} tokens{}</strong> ({}); {} binds, {} of {}: {}.</p>\n",
        l.seq, l.bounded ? "" : " or more", escaped(l.choice), escaped(l.binding_row),
        format_bytes(static_cast<double>(l.binding_bytes)), format_bytes(l.device_bytes),
        escaped(l.binding_reason));
  }
  return text + "</section>\n";
}

}  // namespace usp
