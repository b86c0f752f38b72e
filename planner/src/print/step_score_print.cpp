// SPDX-License-Identifier: Apache-2.0
#include "print_parts.hpp"

#include "usp/base/json_format.hpp"
#include "usp/base/table.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/step_score.hpp"

#include <fmt/format.h>

namespace usp {
namespace {

using Align = TextTable::Align;

std::string metrics_table(const char* title, const std::vector<StepMetrics>& all) {
  TextTable table;
  table.column(title);
  for (const char* name :
       {"runs", "bias", "median error", "covered", "half width", "memory runs", "memory error"})
    table.column(name, Align::right);
  for (const StepMetrics& m : all)
    table.row({m.name, std::to_string(m.rows), m.rows > 0 ? format_percent(m.bias) : "-",
               m.rows > 0 ? format_percent(m.median_error) : "-",
               m.rows > 0 ? format_percent(m.coverage, 0) : "-",
               m.rows > 0 ? format_percent(m.half_width, 0) : "-", std::to_string(m.memory_rows),
               m.memory_rows > 0 ? format_percent(m.memory_error) : "-"});
  return table.str();
}

std::string left_out_table(const StepScore& score) {
  if (score.left_out.empty()) return "";
  TextTable table;
  table.column("left out of the fit");
  for (const char* name : {"runs", "factor", "widening", "median error", "covered", "half width"})
    table.column(name, Align::right);
  for (const LeftOutSource& s : score.left_out)
    table.row({s.name, std::to_string(s.rows), format_fixed(s.factor, 2), format_fixed(s.widening, 2),
               format_percent(s.median_error), format_percent(s.coverage, 0),
               format_percent(s.half_width, 0)});
  return fmt::format("{}median over sources: {}, {} of all runs covered\n\n", table.str(),
                     format_percent(score.left_out_median), format_percent(score.left_out_coverage, 0));
}

std::string runs_table(const StepScore& score) {
  TextTable table;
  table.column("run");
  table.column("model");
  for (const char* name : {"tokens/s", "measured", "error", "band", "GiB", "measured"})
    table.column(name, Align::right);
  table.column("layout");
  for (std::size_t i = 0; i < score.runs.size(); ++i) {
    const StepRun& run = score.runs[i];
    const StepPrediction& p = score.predictions[i];
    if (!p.why.empty()) continue;
    table.row(
        {run.id, run.model, format_fixed(p.tokens_s, 0), p.measured_s ? format_fixed(*p.measured_s, 0) : "-",
         p.measured_s ? format_percent(p.error()) : "-", "+-" + format_percent(p.band, 0),
         format_fixed(p.memory_gib, 1) + (p.fits ? "" : " !"),
         run.memory_gib ? format_fixed(*run.memory_gib, 1) : "-",
         p.layout + (p.assumed.empty() ? "" : fmt::format(" (assumed: {})", fmt::join(p.assumed, ", ")))});
  }
  return table.str();
}

std::string not_priced_text(const StepScore& score) {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < score.runs.size(); ++i)
    if (!score.predictions[i].why.empty())
      lines.push_back(
          fmt::format("{} {}: {}", score.runs[i].id, score.runs[i].model, score.predictions[i].why));
  return list_text("not priced", lines);
}

Json metrics_json(const StepMetrics& m) {
  return {{"name", m.name},
          {"rows", m.rows},
          {"bias", m.bias},
          {"median_error", m.median_error},
          {"coverage", m.coverage},
          {"median_band", m.half_width},
          {"memory_rows", m.memory_rows},
          {"memory_error", m.memory_error}};
}

Json list_json(const std::vector<StepMetrics>& all) {
  Json list = Json::array();
  for (const StepMetrics& m : all) list.push_back(metrics_json(m));
  return list;
}

template <class T>
Json maybe(const std::optional<T>& value, double unit = 1) {
  return value ? Json(*value * unit) : Json(nullptr);
}

}  // namespace

std::string step_score_text(const StepScore& score) {
  std::string text = fmt::format(
      "{} of {} runs priced, {} refused as infeasible\nmedian over sources of their median errors: {} "
      "(16-bit types "
      "on calibrated cards)\n\n",
      score.priced, score.runs.size(), score.infeasible, format_percent(score.median_over_sources));
  std::vector<StepMetrics> gated = score.sources;
  gated.push_back(score.gated);
  text += metrics_table("16-bit types on calibrated cards, by source", gated) + "\n";
  text += left_out_table(score);
  text += metrics_table("class", score.classes) + "\n" + runs_table(score) + not_priced_text(score);
  return text + list_text("notes", score.notes);
}

std::string step_score_json(const StepScore& score) {
  Json json = json_header("usp.step_score");
  json["request"] = {{"table", score.file}};
  json["priced"] = score.priced;
  json["infeasible"] = score.infeasible;
  json["median_over_sources"] = score.median_over_sources;
  json["gated"] = metrics_json(score.gated);
  json["sources"] = list_json(score.sources);
  json["classes"] = list_json(score.classes);
  json["left_out"] = {{"median_over_sources", score.left_out_median},
                      {"coverage", score.left_out_coverage},
                      {"sources", Json::array()}};
  for (const LeftOutSource& s : score.left_out)
    json["left_out"]["sources"].push_back({{"name", s.name},
                                           {"rows", s.rows},
                                           {"factor", s.factor},
                                           {"widening", s.widening},
                                           {"median_error", s.median_error},
                                           {"coverage", s.coverage},
                                           {"median_band", s.half_width}});
  json["runs"] = Json::array();
  for (std::size_t i = 0; i < score.runs.size(); ++i) {
    const StepRun& run = score.runs[i];
    const StepPrediction& p = score.predictions[i];
    Json one = {{"id", run.id},
                {"line", run.line},
                {"model", run.model},
                {"not_priced", p.why.empty() ? Json(nullptr) : Json(p.why)},
                {"gated", p.gated},
                {"measured_tokens_per_s_per_device", maybe(p.measured_s)},
                {"measured_memory_bytes", maybe(run.memory_gib, 0x1p30)}};
    const bool priced = p.why.empty();
    one["tokens_per_s_per_device"] = priced ? Json(p.tokens_s) : Json(nullptr);
    one["band"] = priced ? Json(p.band) : Json(nullptr);
    one["error"] = priced && p.measured_s ? Json(p.error()) : Json(nullptr);
    one["memory_bytes"] = priced ? Json(p.memory_gib * 0x1p30) : Json(nullptr);
    one["fits_memory"] = priced ? Json(p.fits) : Json(nullptr);
    one["layout"] = p.layout;
    one["assumed"] = p.assumed;
    json["runs"].push_back(std::move(one));
  }
  json["notes"] = score.notes;
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace usp
