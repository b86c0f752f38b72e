// SPDX-License-Identifier: Apache-2.0
#include "../search/search_size.hpp"
#include "print_parts.hpp"
#include "svg.hpp"

#include "usp/base/error.hpp"
#include "usp/base/units.hpp"
#include "usp/base/version.hpp"

#include <fmt/format.h>

#include <cmath>
#include <map>

namespace usp {
namespace {

constexpr const char* style = R"css(
:root{--bg:#fff;--fg:#1b1f24;--dim:#57606a;--line:#d0d7de;--box:#f6f8fa;--limit:#b3261e;--curve:#0b62c4;
--c0:#2f6fb7;--c1:#d9822b;--c2:#3f9a5a;--c3:#b5499a;--c4:#7a6bd0;--c5:#c2a51f;--c6:#2aa1a8;--c7:#c0504d;--c8:#7f8a96;--c9:#8a6a4f;--c10:#1f3d66;--c11:#9bb53c}
@media (prefers-color-scheme:dark){:root{--bg:#12161c;--fg:#e6edf3;--dim:#9aa6b2;--line:#36404c;--box:#1b2129;
--limit:#ff8a80;--curve:#79b8ff;--c0:#5b9be0;--c1:#e8a05c;--c2:#63bd7e;--c3:#d377bd;--c4:#a79bf0;--c5:#d9c04a;
--c6:#55c3c9;--c7:#e07f7b;--c8:#a3aeb9;--c9:#b8957a;--c10:#9db7e0;--c11:#bcd465}}
*{box-sizing:border-box}
body{margin:0 auto;padding:16px;max-width:980px;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;overflow-wrap:anywhere}
h1{font-size:1.5rem;line-height:1.25;margin:.2em 0 .4em}h2{font-size:1.2rem;margin:1.6em 0 .4em;border-bottom:1px solid var(--line)}
h3{font-size:1rem;margin:1em 0 .2em}.answer{background:var(--box);border:1px solid var(--line);border-radius:6px;padding:10px 14px}
.whisker{stroke:var(--fg);stroke-width:1.5}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:8px;list-style:none;padding:0;margin:.8em 0 0}
.tiles li{background:var(--box);border:1px solid var(--line);border-radius:6px;padding:8px 12px}
.tiles strong{display:block;font-size:1.25rem;line-height:1.2}.tiles span{color:var(--dim);font-size:.85em}
.command{font-family:ui-monospace,"DejaVu Sans Mono",monospace;font-size:.88em;background:var(--box);padding:4px 8px;margin:.3em 0;border-radius:4px}
.answer p{margin:.3em 0}.note{color:var(--dim);font-size:.9em}.figure{overflow-x:auto;margin:.6em 0;
background:linear-gradient(to right,var(--bg) 30%,transparent),linear-gradient(to left,var(--bg) 30%,transparent) 100% 0,
linear-gradient(to right,var(--dim),transparent),linear-gradient(to left,var(--dim),transparent) 100% 0;
background-repeat:no-repeat;background-size:48px 100%,48px 100%,14px 100%,14px 100%;
background-attachment:local,local,scroll,scroll}
svg{display:block;width:100%;height:auto}svg text{fill:var(--fg);font-size:13px;font-family:inherit}
svg .small{font-size:11px}svg .strong{font-weight:600}svg .end{text-anchor:end}svg .mid{text-anchor:middle}
.axis{stroke:var(--dim);stroke-width:1}.grid{stroke:var(--line);stroke-width:1}
.limit{stroke:var(--limit);stroke-width:2;stroke-dasharray:6 4}.curve{fill:none;stroke:var(--curve);stroke-width:2}
.hollow{fill:var(--bg);stroke:var(--curve);stroke-width:2}.part{stroke:var(--bg);stroke-width:.7}
.box{fill:var(--box);stroke:var(--line)}.tint{fill-opacity:.28;stroke-width:2}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 16px;padding:0;margin:.3em 0;font-size:.9em}
.swatch{display:inline-block;width:12px;height:12px;margin-right:6px;border-radius:2px}
table{border-collapse:collapse;font-size:.88em;min-width:50%}caption{text-align:left;font-weight:600;padding:.4em 0}
th,td{padding:3px 12px 3px 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:top;overflow-wrap:normal}
.num{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}summary{cursor:pointer;color:var(--dim)}
@media (max-width:520px){body{padding:10px;font-size:14px}}
@media print{.figure{overflow:visible}}
)css";

std::string colours() {
  std::string css;
  for (std::size_t i = 0; i < 12; ++i) {
    const std::string c = colour(i);
    css += fmt::format(".{}{{fill:var(--{});background:var(--{})}}.tint.{}{{stroke:var(--{})}}\n", c, c, c, c,
                       c);
  }
  return css;
}

std::string list(const std::vector<std::string>& items) {
  std::string text = "<ul>";
  for (const std::string& item : items) text += fmt::format("<li>{}</li>", escaped(item));
  return items.empty() ? "" : text + "</ul>\n";
}

/// The numbers that are asked for first.
std::string tiles(const ReportInput& input) {
  const PlanCandidate& best = input.plan->best();
  const Verdict& v = input.plan->verdict;
  const double rate = 1 / best.seconds_per_token;
  const auto devices = static_cast<double>(input.request->cluster->devices.size());
  const double share = static_cast<double>(best.memory.total_bytes) / card_bytes(*input.request);
  const std::pair<std::string, const char*> list[] = {
      {rate_text(rate), "tokens/s"},
      {rate_text(rate / devices), "tokens/s per device"},
      {format_seconds(best.step_s),
       input.request->workload.training ? "per training step" : "per forward step"},
      {format_percent(share, 0), "of the device's memory"},
      {"\xC2\xB1" + format_percent(best.band, 0), "band of the time"},
      {v.runner_up.empty() ? "-"
       : v.tie             ? "a tie"
                           : format_percent(v.margin),
       "lead over the next mesh"}};
  std::string text = "<ul class=\"tiles\">";
  for (const auto& [value, name] : list)
    text += fmt::format("<li><strong>{}</strong><span>{}</span></li>", escaped(value), name);
  return text + "</ul>\n";
}

std::string headline(const ReportInput& input) {
  const PlanCandidate& best = input.plan->best();
  const Workload& w = input.request->workload;
  const Verdict& v = input.plan->verdict;
  std::string text = fmt::format(
      "<section id=\"answer\"><h1>{} at {} tokens on {} ({} devices)</h1>\n<div "
      "class=\"answer\"><p><strong>{}</strong></p><p>{} per {} step (band \xC2\xB1{}), {} of {} per "
      "device.</p>",
      escaped(input.request->model->name), format_tokens(w.seq), escaped(input.request->cluster->name),
      input.request->cluster->devices.size(), escaped(describe(best.choice)), format_seconds(best.step_s),
      w.training ? "training" : "forward", format_percent(best.band, 0),
      format_bytes(static_cast<double>(best.memory.total_bytes)), format_bytes(card_bytes(*input.request)));
  if (!v.runner_up.empty())
    text += fmt::format("<p>{}{}.</p>",
                        v.tie ? "A tie with " : fmt::format("Ahead by {} of ", format_percent(v.margin)),
                        escaped(v.runner_up));
  if (!input.plan->calibration.calibrated)
    text += "<p><strong>Uncalibrated</strong>: all times come from data sheets.</p>";
  return text + "</div>" + tiles(input) + "</section>\n";
}

/// The commands that give this plan and take it along.
std::string commands_section(const ReportInput& input) {
  const Workload& w = input.request->workload;
  const std::string plan =
      fmt::format("usp plan {} --seq {} --cluster {} ... -o plan.json", input.request->model->name,
                  format_tokens(w.seq), input.request->cluster->name);
  std::string text = "<section id=\"commands\"><h2>Take it along</h2>\n";
  for (const std::string& command : {plan, std::string("usp export plan.json --to megatron"),
                                     std::string("usp explain plan.json --trace trace.json")})
    text += fmt::format("<p class=\"command\">{}</p>\n", escaped(command));
  return text +
         "<p class=\"note\">with the flags that this report was made with; --to also takes deepspeed, "
         "accelerate, "
         "xdit, torchtitan, yunchang and usp-attention</p></section>\n";
}

std::string verdict_section(const ReportInput& input) {
  const Verdict& v = input.plan->verdict;
  std::string text = "<section id=\"verdict\"><h2>How sure it is</h2>\n";
  if (v.runner_up.empty())
    text += fmt::format("<p>There is nothing to compare: {}.</p>\n", escaped(v.alone));
  else
    text += fmt::format(
        "<p>Runner-up: {}, {} slower per token. {}</p>\n", escaped(v.runner_up), format_percent(v.margin),
        v.tie ? "<strong>That is a tie</strong>: the bands of the terms that differ are wider "
                "than the lead."
              : "The lead is wider than the bands of the terms that differ.");
  if (!v.tie_breaking_measurements.empty())
    text += "<h3>What would settle it</h3>\n" + list(v.tie_breaking_measurements);
  if (!v.sensitive_terms.empty()) text += "<h3>The choice is sensitive to</h3>\n" + list(v.sensitive_terms);
  return text + "</section>\n";
}

std::string candidates_section(const ReportInput& input) {
  std::vector<std::vector<std::string>> rows = {
      {"#", "layout", "step", "per token", "band", "memory", "fits"}};
  for (std::size_t i = 0; i < input.plan->candidates.size(); ++i) {
    const PlanCandidate& c = input.plan->candidates[i];
    rows.push_back({std::to_string(i + 1), describe(c.choice), format_seconds(c.step_s),
                    format_seconds(c.seconds_per_token), "\xC2\xB1" + format_percent(c.band, 0),
                    format_bytes(static_cast<double>(c.memory.total_bytes)), c.fits ? "yes" : "no"});
  }
  return fmt::format(
      "<section id=\"candidates\"><h2>Candidates</h2>\n{}<p class=\"note\">{} attention schedules were "
      "priced.</p></section>\n",
      html_table("Best first", rows, 2), input.plan->considered);
}

std::string rejected_section(const ReportInput& input) {
  std::map<std::string, std::vector<std::string>> by_reason;
  for (const Rejection& r : input.plan->rejected)
    by_reason[r.reason].push_back(fmt::format("({}, {})", r.ring, r.ulysses));
  std::string text = "<section id=\"rejected\"><h2>What is not possible, and why</h2>\n";
  if (by_reason.empty()) return text + "<p>Every mesh that was asked for is legal.</p></section>\n";
  std::vector<std::vector<std::string>> rows = {{"reason", "meshes (ring, ulysses)"}};
  for (const auto& [reason, meshes] : by_reason) {
    std::string names;
    for (std::size_t i = 0; i < meshes.size() && i < 8; ++i) names += (i > 0 ? " " : "") + meshes[i];
    if (meshes.size() > 8) names += fmt::format(" and {} more", meshes.size() - 8);
    rows.push_back({reason, names});
  }
  return fmt::format("{}{}</section>\n", text, html_table("Rejected meshes", rows, 9));
}

std::string sources_section(const ReportInput& input) {
  const CalibrationSummary& c = input.plan->calibration;
  std::string text = fmt::format(
      "<section id=\"sources\"><h2>Where the numbers come from</h2>\n<p>Calibration: <strong>{}</strong>{}.",
      escaped(c.name), c.calibrated ? "" : " (uncalibrated: data-sheet rates)");
  if (c.calibrated)
    text += fmt::format(
        " Measured transfers lie {} from their curves on average; the attention fit's mean error is {}.",
        format_percent(c.comm_error), format_percent(c.kernel_error));
  text += "</p>\n" + list(c.sources);
  if (!c.extrapolations.empty()) text += "<h3>Extrapolated</h3>\n" + list(c.extrapolations);
  const std::pair<const char*, const std::vector<std::string>*> notes[] = {
      {"Plan", &input.plan->notes},
      {"Cluster", &input.request->cluster->notes},
      {"Model", &input.request->model->notes},
      {"Model, derived", &input.request->model->derived}};
  for (const auto& [name, lines] : notes)
    if (!lines->empty()) text += fmt::format("<h3>{}</h3>\n{}", name, list(*lines));
  return text + "</section>\n";
}

std::string workload_section(const ReportInput& input) {
  const Workload& w = input.request->workload;
  const Model& m = *input.request->model;
  const topology::Cluster& c = *input.request->cluster;
  const std::vector<std::vector<std::string>> rows = {
      {"input", "value"},
      {"model", fmt::format("{} ({}), {} layers, hidden {}", m.name, m.family, m.layers, m.hidden)},
      {"cluster", fmt::format("{}, {} hosts, {} devices, {} NICs", c.name, c.nodes.size(), c.devices.size(),
                              c.nics.size())},
      {"sequence",
       fmt::format("{} tokens, {}{}", w.seq, w.causal ? "causal" : "no mask",
                   w.documents.empty() ? "" : fmt::format(", {} packed documents", w.documents.size()))},
      {"batch", fmt::format("{} rows per replica in {} microbatches", w.batch, w.microbatches)},
      {"type and optimizer",
       fmt::format("{}, {}", word_of(w.dtype),
                   w.training ? std::string(word_of(w.optimizer)) : std::string("forward only"))}};
  return fmt::format("<section id=\"inputs\"><h2>Inputs</h2>\n{}</section>\n",
                     html_table("What was asked", rows, 9));
}

}  // namespace

std::string short_choice(const Choice& c) {
  std::string text = fmt::format("ring {} x ulysses {}", c.mesh.ring(), c.mesh.ulysses);
  if (c.tensor() > 1) text += fmt::format(", tensor {}", c.tensor());
  if (c.data() > 1) text += fmt::format(", data {}", c.data());
  if (c.mesh.ring() > 1) text += fmt::format(", {} {}", word_of(c.layout), word_of(c.method));
  return fmt::format("{}, recompute {}, ZeRO-{}", text, word_of(c.recompute), c.zero_stage);
}

double card_bytes(const PlanRequest& request) {
  if (request.memory.device_bytes) return *request.memory.device_bytes;
  const topology::Cluster& cluster = *request.cluster;
  return cluster.specs[static_cast<std::size_t>(cluster.spec_of_device.front())].memory_bytes.value.value_or(
      0);
}

WhatIfResult report_sweep(const PlanRequest& request) {
  WhatIfRequest sweep;
  sweep.base = request;
  sweep.progress = request.progress;
  if (!request.workload.documents.empty()) return {};
  Axis axis = parse_axis("seq=1k");
  axis.values.clear();
  const i64 least = static_cast<i64>(2 * request.cluster->devices.size());
  for (int power = -3; power <= 3; ++power) {
    const auto seq = static_cast<i64>(std::ldexp(static_cast<double>(request.workload.seq), power));
    if (seq >= least || power == 0)
      axis.values.push_back(axis_value(AxisKind::seq, static_cast<double>(seq)));
  }
  sweep.axes = {axis};
  return sweep_ticks(sweep) > max_search_ticks ? WhatIfResult{} : what_if(sweep);
}

std::string report_html(const ReportInput& input) {
  expects(input.plan->feasible(), "a report needs a feasible plan");
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light "
      "dark\"><title>usp: {} on {}</title><style>{}{}</style></head><body>\n<main>\n",
      escaped(input.request->model->name), escaped(input.request->cluster->name), style, colours());
  html += headline(input) + workload_section(input) + time_section(input) + memory_section(input) +
          mesh_section(input) + timeline_section(input) + pareto_section(input) + sweep_section(input) +
          verdict_section(input) + commands_section(input) + candidates_section(input) +
          rejected_section(input) + sources_section(input);
  return fmt::format(
      "{}</main>\n<footer class=\"note\">usp {}. Times are predictions with the bands shown; memory is a "
      "table that sums.</footer>\n</body></html>\n",
      html, version);
}

}  // namespace usp
