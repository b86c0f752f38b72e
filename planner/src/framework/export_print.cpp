// SPDX-License-Identifier: Apache-2.0
#include "print_parts.hpp"

#include "usp/base/json_format.hpp"
#include "usp/base/table.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/cluster_summary.hpp"
#include "usp/planner/export_plan.hpp"
#include "usp/schedule/words.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp {
namespace {

constexpr std::size_t max_modes = 6;
constexpr std::size_t command_columns = 76;  ///< and the backslash

std::string mode_text(const PricedMode& m) {
  std::string text = fmt::format("{}: ring {} x ulysses {}", m.mode->word, m.ring, m.ulysses);
  if (m.ring > 1 && m.ulysses > 1) text += fmt::format(", {}", word_of(m.order));
  return text;
}

std::string head_text(const PlanFile& plan, const ExportedPlan& result) {
  std::string text = fmt::format("{} on {}: ring {} x ulysses {}", plan.model, plan.cluster, plan.mesh.ring(),
                                 plan.mesh.ulysses);
  if (plan.placement.tensor > 1) text += fmt::format(", tensor {}", plan.placement.tensor);
  if (plan.placement.data > 1) text += fmt::format(", data {}", plan.placement.data);
  if (plan.pipeline > 1) text += fmt::format(", pipeline {}", plan.pipeline);
  text += fmt::format("\nin {}\n", result.framework->name);
  if (result.chosen.mode == nullptr)
    return text + (result.framework->any_plan ? "  the whole plan, as it is\n"
                                              : "  one rank per sequence: no exchange of attention\n");
  return text + fmt::format("  {}{}\n", mode_text(result.chosen),
                            result.same_exchange        ? ", the plan's own exchange"
                            : result.chosen.attention_s ? ", the fastest it can do on these ranks"
                                                        : ", the mesh nearest to the plan's");
}

std::string cost_text(const PlanFile& plan, const ExportedPlan& result) {
  const auto& seconds = result.chosen.attention_s;
  if (result.chosen.mode == nullptr) return "";
  if (!seconds)
    return "  its cost: not priced; give --cluster and the flags beside it that the plan was made with\n";
  const double more = *seconds - result.plan_attention_s;
  const std::string what = plan.inputs.step ? "attention of a step"
                           : plan.training  ? "both passes"
                                            : "the forward pass";
  std::string text =
      fmt::format("  {}: {} +-{} instead of {} ({}{})\n", what, format_seconds(*seconds),
                  format_percent(result.chosen.band, 0), format_seconds(result.plan_attention_s),
                  more < 0 ? "" : "+", format_percent(more / std::max(result.plan_attention_s, 1e-30)));
  if (plan.inputs.step)
    text += fmt::format("  the step: {} instead of {} ({}{})\n", format_seconds(plan.step_s + more),
                        format_seconds(plan.step_s), more < 0 ? "" : "+", format_percent(more / plan.step_s));
  return text;
}

std::string arguments_text(const std::vector<Setting>& arguments) {
  if (arguments.empty()) return "";
  std::string text = "\narguments\n  ARGS=(\n";
  for (const Setting& a : arguments)
    text += fmt::format("    {}{}{}\n", a.name, a.value.empty() ? "" : " ", a.value);
  return text + "  )\n";
}

std::string environment_text(const std::vector<Setting>& variables) {
  std::string text;
  for (const Setting& v : variables) text += fmt::format("  export {}={}  # {}\n", v.name, v.value, v.reason);
  return text.empty() ? "" : "\nenvironment\n" + text;
}

std::string texts_text(const std::vector<ExportedText>& texts) {
  std::string text;
  for (const ExportedText& part : texts) {
    text += fmt::format("\n{}\n", part.title);
    for_each_line(part.text, [&](long, std::string_view line) {
      text += line.empty() ? "\n" : fmt::format("  {}\n", line);
    });
  }
  return text;
}

/// Words of a shell command; text in single quotes is one word.
std::vector<std::string> command_words(const std::string& command) {
  std::vector<std::string> words(1);
  bool quoted = false;
  for (std::size_t i = 0; i < command.size(); ++i) {
    const char c = command[i];
    if (c == '\'') quoted = !quoted;
    if (c == ' ' && !quoted) {
      words.emplace_back();
      continue;
    }
    words.back() += c;
    if (c == '\\' && !quoted && i + 1 < command.size()) words.back() += command[++i];
  }
  return words;
}

/// A shell command over lines of command_columns, broken before arguments.
std::string continued(const std::string& command) {
  std::string text, line;
  for (const std::string& word : command_words(command)) {
    if (!line.empty() && 4 + line.size() + 1 + word.size() > command_columns) {
      text += line + " \\\n    ";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return text + line;
}

std::string launch_text(const ExportedPlan& result) {
  std::string text = fmt::format("\nlaunch (rank order, fastest first: {})\n", result.rank_order);
  for (const LaunchLine& line : result.launch)
    text += fmt::format("  # {}\n  {}\n", line.launcher, continued(line.text));
  return text;
}

std::string differences_text(const std::vector<Difference>& differences) {
  std::vector<std::string> lines;
  for (const Difference& d : differences) lines.push_back(fmt::format("{} -> {}", d.plan, d.framework));
  return list_text("what it does otherwise", lines);
}

std::string modes_text(const ExportedPlan& result) {
  std::string impossible = list_text("what it cannot", result.impossible);
  if (result.modes.empty()) return impossible;
  TextTable table;
  table.column("on as many ranks it can do");
  table.column("attention", TextTable::Align::right);
  for (std::size_t i = 0; i < result.modes.size() && i < max_modes; ++i) {
    const PricedMode& m = result.modes[i];
    table.row({mode_text(m), m.attention_s ? format_seconds(*m.attention_s) : "-"});
  }
  std::string text = "\n" + table.str(2);
  if (result.modes.size() > max_modes)
    text += fmt::format("  and {} more (--json lists all)\n", result.modes.size() - max_modes);
  return text + impossible;
}

Json setting_json(const Setting& s) {
  return {{"name", s.name}, {"value", s.value.empty() ? Json(nullptr) : Json(s.value)}};
}

Json mode_json(const PricedMode& m) {
  return {{"word", m.mode == nullptr ? Json(nullptr) : Json(m.mode->word)},
          {"ring", m.ring},
          {"ulysses", m.ulysses},
          {"order", word_of(m.order)},
          {"attention_s", json_or_null(m.attention_s)},
          {"band", m.attention_s ? Json(m.band) : Json(nullptr)}};
}

Json framework_json(const FrameworkTraits& f) {
  return {{"word", f.word}, {"name", f.name}, {"version", f.version}, {"source", f.source}};
}

template <class T, class Each>
Json list_json(const std::vector<T>& list, const Each& each) {
  Json json = Json::array();
  for (const T& item : list) json.push_back(each(item));
  return json;
}

Json lists_json(const ExportedPlan& result) {
  Json json;
  json["arguments"] = list_json(result.arguments, setting_json);
  json["environment"] = list_json(result.environment, [](const Setting& s) {
    Json item = setting_json(s);
    item["reason"] = s.reason;
    return item;
  });
  json["texts"] = list_json(result.texts, [](const ExportedText& t) {
    return Json{{"title", t.title}, {"text", t.text}};
  });
  json["rank_order"] = result.rank_order;
  json["launch"] = list_json(result.launch, [](const LaunchLine& l) {
    return Json{{"launcher", l.launcher}, {"command", l.text}};
  });
  json["differences"] = list_json(result.differences, [](const Difference& d) {
    return Json{{"plan", d.plan}, {"framework", d.framework}};
  });
  json["modes"] = list_json(result.modes, mode_json);
  json["impossible_modes"] = result.impossible;
  json["notes"] = result.notes;
  return json;
}

}  // namespace

std::string export_text(const ExportRequest& request, const ExportedPlan& result) {
  const PlanFile& plan = *request.plan;
  std::string text = head_text(plan, result) + cost_text(plan, result);
  text += environment_text(result.environment) + arguments_text(result.arguments) + texts_text(result.texts);
  text += launch_text(result) + differences_text(result.differences) + modes_text(result);
  text += list_text("notes", result.notes);
  return text +
         fmt::format("\nnames and limits: {} ({})\n", result.framework->version, result.framework->source);
}

std::string export_json(const ExportRequest& request, const ExportedPlan& result) {
  Json json = json_header("usp.export");
  json["request"] = {
      {"plan_digest", plan_digest(*request.plan)},
      {"framework", result.framework->word},
      {"cluster", request.cluster == nullptr ? Json(nullptr) : Json(cluster_summary(*request.cluster).name)},
      {"script", request.script.empty() ? Json(nullptr) : Json(request.script)}};
  json["framework"] = framework_json(*result.framework);
  json["mode"] = mode_json(result.chosen);
  json["same_exchange"] = result.same_exchange;
  json["plan_attention_s"] = result.plan_attention_s;
  const Json lists = lists_json(result);
  json.update(lists);
  return json.dump(1) + "\n";
}

}  // namespace usp
