// SPDX-License-Identifier: Apache-2.0
#include "report_parts.hpp"

#include "usp/base/text.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/framework.hpp"
#include "usp/planner/parameters.hpp"
#include "usp/planner/plan_print.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp {
namespace {

/// Candidates whose terms and memory are drawn.
constexpr std::size_t max_drawn = 12;

Json terms_json(const PlanCandidate& candidate) {
  Json list = Json::array();
  for (const TimeTerm& term : candidate.terms)
    list.push_back(
        {{"name", term.name}, {"time_s", term.seconds}, {"band", term.band}, {"reason", term.reason}});
  return list;
}

Json rows_json(const std::vector<MemoryRow>& rows) {
  Json list = Json::array();
  for (const MemoryRow& row : rows)
    if (row.bytes > 0) list.push_back({{"name", row.name}, {"bytes", row.bytes}, {"reason", row.reason}});
  return list;
}

Json candidates_json(const PlanResult& plan) {
  Json list = Json::array();
  for (std::size_t i = 0; i < plan.candidates.size() && i < max_drawn; ++i) {
    const PlanCandidate& c = plan.candidates[i];
    list.push_back({{"name", short_choice(c.choice)},
                    {"time_per_token_s", c.seconds_per_token},
                    {"terms", terms_json(c)},
                    {"memory", rows_json(c.memory.rows)},
                    {"host_memory", rows_json(c.memory.host_rows)}});
  }
  return list;
}

/// What was asked, for people.
Json question_json(const ReportInput& input) {
  const Workload& w = input.request->workload;
  const Model& m = *input.request->model;
  const topology::Cluster& c = *input.request->cluster;
  const std::optional<i64> total = count_parameters(m).total;
  const std::string documents =
      w.documents.empty() ? "" : fmt::format(", {}", counted(w.documents.size(), "packed document"));
  return {
      {"model", m.name},
      {"cluster", c.name},
      {"hosts", c.nodes.size()},
      {"devices", c.devices.size()},
      {"seq", w.seq},
      {"training", w.training},
      {"rows",
       {{"model", fmt::format("{} ({}), {}, hidden {}{}", m.name, m.family, counted(m.layers, "layer"),
                              m.hidden, total ? fmt::format(", {} parameters", format_count(*total)) : "")},
        {"cluster", fmt::format("{}: {}, {}, {}", c.name, counted(c.nodes.size(), "host"),
                                counted(c.devices.size(), "device"), counted(c.nics.size(), "NIC"))},
        {"sequence",
         fmt::format("{}, {}{}", counted(w.seq, "token"), w.causal ? "causal" : "no mask", documents)},
        {"batch", fmt::format("{} rows per replica in {}", w.batch, counted(w.microbatches, "microbatch"))},
        {"type", std::string(word_of(w.dtype))},
        {"optimizer", w.training ? std::string(word_of(w.optimizer)) : std::string("forward only")}}}};
}

Json notes_json(const ReportInput& input) {
  return {{"plan", input.plan->notes},
          {"cluster", input.request->cluster->notes},
          {"model", input.request->model->notes},
          {"model, derived", input.request->model->derived}};
}

Json commands_json(const ReportInput& input) {
  const auto command = [&](const char* what, std::string text) {
    return Json{{"what", what}, {"command", std::move(text)}};
  };
  const std::string& arguments = input.arguments;
  Json list = Json::array();
  list.push_back(command("plan file", fmt::format("usp plan {} -o plan.json", arguments)));
  list.push_back(command("settings of a framework", "usp export plan.json --to FRAMEWORK"));
  list.push_back(command("a plan within that framework",
                         fmt::format("usp plan {} --framework FRAMEWORK -o plan.json", arguments)));
  list.push_back(command("ways side by side", fmt::format("usp compare {}", arguments)));
  list.push_back(command("schedule for Perfetto", "usp explain plan.json --trace trace.json"));
  list.push_back(command("dry run: every message counted", "usp run plan.json --dry-run"));
  return list;
}

Json frameworks_json() {
  Json list = Json::array();
  for (const FrameworkTraits* framework : frameworks()) list.push_back(framework->word);
  return list;
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

std::string report_data_json(const ReportInput& input) {
  Json json;
  json["plan"] = Json::parse(plan_result_json(*input.request, *input.plan));
  json["question"] = question_json(input);
  json["card_bytes"] = card_bytes(*input.request);
  json["candidates"] = candidates_json(*input.plan);
  json["machine"] = report_machine_json(input);
  json["ticks"] = report_ticks_json(input);
  json["sweep"] = report_sweep_json(input);
  json["commands"] = commands_json(input);
  json["frameworks"] = frameworks_json();
  json["alone"] = input.plan->verdict.alone;
  json["notes"] = notes_json(input);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace usp
