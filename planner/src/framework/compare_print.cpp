// SPDX-License-Identifier: Apache-2.0
#include "print_parts.hpp"
#include "request_json.hpp"

#include "usp/base/json_format.hpp"
#include "usp/base/table.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/compare.hpp"
#include "usp/schedule/words.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp {
namespace {

using Align = TextTable::Align;

std::string mesh_of(const Choice& c) {
  std::string text = fmt::format("{}x{}", c.mesh.ring(), c.mesh.ulysses);
  if (c.tensor() > 1) text += fmt::format(" t{}", c.tensor());
  if (c.data() > 1) text += fmt::format(" d{}", c.data());
  return text;
}

/// "434 GiB"
std::string short_bytes(double bytes) {
  const std::string text = format_bytes(bytes);
  const std::size_t point = text.find('.');
  return point == std::string::npos || point < 2 ? text : text.substr(0, point) + text.substr(text.find(' '));
}

/// Least of the ways that fit; 0: none does.
double least_per_token(const Comparison& result) {
  double least = 0;
  for (const ComparedWay& way : result.ways)
    if (way.plan && way.plan->fits && (least == 0 || way.plan->seconds_per_token < least))
      least = way.plan->seconds_per_token;
  return least;
}

std::vector<std::string> row_of(const ComparedWay& way, double least) {
  const ComparedPlan& p = *way.plan;
  const std::string slower =
      least == 0 ? "-"
                 : fmt::format("+{}", format_percent(std::max(0.0, p.seconds_per_token / least - 1), 0));
  const double gib = static_cast<double>(p.memory_bytes) / 1073741824.0;
  return {way.name,
          mesh_of(p.choice),
          format_seconds(p.step_s),
          slower,
          format_seconds(p.exposed_s),
          short_bytes(p.bytes.inside),
          short_bytes(p.bytes.nics),
          fmt::format("{}{}", format_fixed(gib, gib < 999.5 ? 1 : 0), p.fits ? "" : " !")};
}

Json way_json(const ComparedWay& way) {
  Json json{{"name", way.name}, {"runs_on", way.runs_on}};
  json["also_in"] = way.also_in;
  json["impossible_reason"] = way.impossible_reason.empty() ? Json(nullptr) : Json(way.impossible_reason);
  json["plan"] = nullptr;
  if (!way.plan) return json;
  const ComparedPlan& p = *way.plan;
  const Choice& c = p.choice;
  json["plan"] = {{"description", describe(c)},
                  {"ring", c.mesh.ring()},
                  {"ulysses", c.mesh.ulysses},
                  {"tensor", c.tensor()},
                  {"data", c.data()},
                  {"order", word_of(c.placement.order)},
                  {"step_s", p.step_s},
                  {"time_per_token_s", p.seconds_per_token},
                  {"band", p.band},
                  {"exposed_s", p.exposed_s},
                  {"intra_node_bytes", p.bytes.inside},
                  {"inter_node_bytes", p.bytes.nics},
                  {"memory_bytes", p.memory_bytes},
                  {"executable", way.executable()},
                  {"fits_memory", p.fits}};
  return json;
}

std::string quoted(const std::string& text) {
  std::string cell = "\"";
  for (const char c : text) cell += c == '"' ? "\"\"" : std::string(1, c);
  return cell + "\"";
}

}  // namespace

std::string compare_text(const PlanRequest& request, const Comparison& result) {
  const topology::Cluster& cluster = *request.cluster;
  std::string text =
      fmt::format("{} on {}: {} in {}, {} tokens x batch {}\n\n", request.model->name, cluster.name,
                  counted(cluster.devices.size(), "device"), counted(cluster.nodes.size(), "host"),
                  format_tokens(request.workload.seq), request.workload.batch);
  TextTable table;
  table.column("way");
  table.column("mesh");
  for (const char* name : {"step", "/token", "exposed", "in hosts", "NICs", "GiB"})
    table.column(name, Align::right);
  const double least = least_per_token(result);
  std::vector<std::string> impossible;
  bool too_large = false;
  for (const ComparedWay& way : result.ways) {
    if (way.plan) table.row(row_of(way, least));
    if (way.plan && !way.plan->fits) too_large = true;
    if (!way.plan) impossible.push_back(fmt::format("{}: {}", way.name, way.impossible_reason));
  }
  text += table.str();
  text +=
      "mesh: ring x ulysses, t: tensor, d: data; ways with a framework's name are priced as it executes them "
      "(executable: false), the others run on this project's runtime; "
      "exposed, in hosts, NICs: exchange of attention and tensor parallelism, per device and step\n";
  if (too_large) text += "!: does not fit the device\n";
  std::vector<std::string> also;
  for (const ComparedWay& way : result.ways)
    if (!way.also_in.empty()) also.push_back(fmt::format("{}: {}", way.name, join(way.also_in, ", ")));
  text += list_text("the same exchange in frameworks", also);
  text += list_text("not possible", impossible) + list_text("notes", result.notes);
  return fmt::format("{}\n{}\n", text, summary_text(result.calibration));
}

std::string compare_csv(const Comparison& result) {
  std::string text =
      "way,runs_on,ring,ulysses,tensor,data,step_s,time_per_token_s,band,exposed_s,intra_node_bytes,"
      "inter_node_bytes,memory_bytes,fits_memory,executable,impossible_reason\n";
  for (const ComparedWay& way : result.ways) {
    text += fmt::format("{},{},", quoted(way.name), quoted(way.runs_on));
    if (way.plan) {
      const ComparedPlan& p = *way.plan;
      text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},\n", p.choice.mesh.ring(),
                          p.choice.mesh.ulysses, p.choice.tensor(), p.choice.data(), p.step_s,
                          p.seconds_per_token, p.band, p.exposed_s, p.bytes.inside, p.bytes.nics,
                          p.memory_bytes, p.fits ? 1 : 0, way.executable() ? 1 : 0);
    } else {
      text += fmt::format(",,,,,,,,,,,,,{}\n", quoted(way.impossible_reason));
    }
  }
  return text;
}

std::string compare_json(const PlanRequest& request, const Comparison& result) {
  Json json = json_header("usp.compare");
  json["request"] = request_json(request);
  json["ways"] = Json::array();
  for (const ComparedWay& way : result.ways) json["ways"].push_back(way_json(way));
  json["notes"] = result.notes;
  return json.dump(1) + "\n";
}

}  // namespace usp
