// SPDX-License-Identifier: Apache-2.0
#include "request_json.hpp"

#include "usp/base/json_format.hpp"
#include "usp/base/table.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/calibration.hpp"
#include "usp/planner/score.hpp"

#include <fmt/format.h>

namespace usp {
namespace {

std::string mesh_of(const ScoreChoice& choice) {
  return fmt::format("({}, {})", choice.ring, choice.ulysses);
}

std::string metrics_table(const ScoreReport& report, const std::vector<ScoreMetrics>& all) {
  TextTable table;
  table.column("method");
  for (const char* name :
       {"top-1", "regret mean", "worst", "tau in groups", "tau", "MAPE", "in band", "median band"})
    table.column(name, TextTable::Align::right);
  // Of no group there is nothing to rank.
  const auto ranked = [](const ScoreMetrics& of, const std::string& text) {
    return of.ranked_groups > 0 ? text : std::string("none");
  };
  for (std::size_t m = 0; m < all.size(); ++m)
    table.row({report.methods[m], ranked(all[m], fmt::format("{}/{}", all[m].top1, all[m].ranked_groups)),
               ranked(all[m], format_percent(all[m].mean_regret, 2)),
               ranked(all[m], format_percent(all[m].worst_regret, 2)),
               ranked(all[m], format_fixed(all[m].tau_in_groups, 3)),
               all[m].tau ? format_fixed(*all[m].tau, 3) : "-",
               all[m].mape ? format_percent(*all[m].mape) : "-",
               all[m].coverage ? format_percent(*all[m].coverage) : "-",
               all[m].median_band ? format_percent(*all[m].median_band) : "-"});
  return table.str(2);
}

std::string class_table(const ScoreReport& report) {
  TextTable table;
  for (const char* name : {"method", "span", "pass"}) table.column(name);
  for (const char* name : {"rows", "bias", "MAPE", "in band"}) table.column(name, TextTable::Align::right);
  for (const ScoreClass& c : report.classes)
    table.row({c.method, c.span, c.pass, std::to_string(c.rows),
               fmt::format("{}{}", c.bias < 0 ? "" : "+", format_percent(c.bias)), format_percent(c.mape),
               c.coverage ? format_percent(*c.coverage) : "-"});
  return table.str(2);
}

std::string group_table(const ScoreReport& report) {
  TextTable table;
  table.column("group");
  table.column("rows", TextTable::Align::right);
  table.column("best (ring, ulysses)");
  table.column("time", TextTable::Align::right);
  for (const std::string& method : report.methods) table.column(method);
  for (const ScoreGroup& group : report.groups) {
    if (group.rows.empty()) continue;
    std::vector<std::string> cells = {group.label + (group.gated ? "" : " [not gated]"),
                                      std::to_string(group.rows.size()), mesh_of(group.best),
                                      format_seconds(group.best.seconds)};
    for (std::size_t m = 0; m < report.methods.size(); ++m)
      cells.push_back(fmt::format("{} +{}", mesh_of(group.choice[m]), format_percent(group.regret[m])));
    table.row(std::move(cells));
  }
  return table.str(2);
}

Json metrics_json(const ScoreReport& report, const std::vector<ScoreMetrics>& all) {
  Json list = Json::array();
  for (std::size_t m = 0; m < all.size(); ++m) {
    const auto ranked = [&](double value) { return all[m].ranked_groups > 0 ? Json(value) : Json(nullptr); };
    list.push_back({{"method", report.methods[m]},
                    {"groups", all[m].ranked_groups},
                    {"rows", all[m].rows},
                    {"top1", all[m].top1},
                    {"mean_regret", ranked(all[m].mean_regret)},
                    {"worst_regret", ranked(all[m].worst_regret)},
                    {"tau_in_groups", ranked(all[m].tau_in_groups)},
                    {"tau", json_or_null(all[m].tau)},
                    {"mape", json_or_null(all[m].mape)},
                    {"coverage", json_or_null(all[m].coverage)},
                    {"median_band", json_or_null(all[m].median_band)}});
  }
  return list;
}

Json classes_json(const ScoreReport& report) {
  Json list = Json::array();
  for (const ScoreClass& c : report.classes)
    list.push_back({{"method", c.method},
                    {"span", c.span},
                    {"pass", c.pass},
                    {"rows", c.rows},
                    {"bias", c.bias},
                    {"mape", c.mape},
                    {"coverage", json_or_null(c.coverage)}});
  return list;
}

Json choice_json(const ScoreChoice& choice) {
  return {
      {"line", choice.line}, {"ring", choice.ring}, {"ulysses", choice.ulysses}, {"time_s", choice.seconds}};
}

const char* cost_key(CostUnit unit) {
  switch (unit) {
    case CostUnit::seconds:
      return "cost_s";
    case CostUnit::bytes:
      return "cost_bytes";
    case CostUnit::rank:
      break;
  }
  return "cost_rank";
}

Json group_json(const ScoreReport& report, const ScoreGroup& group) {
  Json json = {{"label", group.label},
               {"tokens", group.tokens},
               {"gated", group.gated},
               {"out_of_memory", group.out_of_memory},
               {"best", group.rows.empty() ? Json(nullptr) : choice_json(group.best)}};
  Json rows = Json::array();
  for (std::size_t i = 0; i < group.rows.size(); ++i) {
    const ScoreRow& of = *group.rows[i];
    Json row = choice_json({of.line, of.ring, of.ulysses, *of.seconds});
    for (const CostUnit unit : {CostUnit::seconds, CostUnit::bytes, CostUnit::rank})
      row[cost_key(unit)] = Json::object();
    for (std::size_t m = 0; m < report.methods.size(); ++m)
      row[cost_key(report.units[m])][report.methods[m]] = group.cost[m][i];
    rows.push_back(std::move(row));
  }
  json["rows"] = std::move(rows);
  Json choices = Json::object();
  for (std::size_t m = 0; m < group.choice.size(); ++m) {
    choices[report.methods[m]] = choice_json(group.choice[m]);
    choices[report.methods[m]]["regret"] = group.regret[m];
  }
  json["chosen"] = std::move(choices);
  return json;
}

}  // namespace

std::string score_text(const ScoreReport& report) {
  std::string text = fmt::format(
      "{}, {} (rows that differ in ring and ulysses only), {} out of memory (counted, not scored)\n\n",
      counted(report.rows.size(), "row"), counted(report.groups.size(), "group"), report.out_of_memory);
  const std::string gate = format_tokens(report.gate_tokens);
  text += fmt::format("Groups of {} tokens and more, synchronised:\n{}", gate,
                      metrics_table(report, report.gated));
  if (!report.classes.empty())
    text += fmt::format("\nOf these, {} by class:\n{}", report.methods.front(), class_table(report));
  if (report.noise.sets > 0)
    text += fmt::format(
        "\nNoise floor, of {} of rows of equal work (Ulysses over all ranks, any layout): {} apart on "
        "average, "
        "{} at worst\n",
        counted(report.noise.sets, "set"), format_percent(report.noise.mean),
        format_percent(report.noise.worst));
  text += "\nShorter groups, and runs that did not wait for the device (shown, not gated):\n" +
          metrics_table(report, report.shorter);
  text += "\nChosen (ring, ulysses) and regret per group:\n" + group_table(report);
  if (report.cluster)
    text += fmt::format("\nPriced on {}\n{}", report.cluster->name, summary_text(report.calibration));
  for (const std::string& note : report.notes) text += fmt::format("note: {}\n", note);
  return text;
}

std::string score_json(const ScoreReport& report) {
  Json groups = Json::array();
  for (const ScoreGroup& group : report.groups) groups.push_back(group_json(report, group));
  Json json = json_header("usp.score");
  json["request"] = request_json(report);
  json["calibration"] = parse_json(summary_json(report.calibration), "calibration");
  json["rows"] = report.rows.size();
  json["out_of_memory"] = report.out_of_memory;
  json["gated"] = metrics_json(report, report.gated);
  json["shorter"] = metrics_json(report, report.shorter);
  json["classes"] = classes_json(report);
  json["noise_floor"] = {
      {"sets", report.noise.sets}, {"mean_spread", report.noise.mean}, {"worst_spread", report.noise.worst}};
  json["groups"] = std::move(groups);
  json["notes"] = report.notes;
  return json.dump(2) + "\n";
}

}  // namespace usp
