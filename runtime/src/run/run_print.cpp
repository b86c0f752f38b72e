// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/run_print.hpp"

#include "recipe_json.hpp"
#include "run_request_json.hpp"

#include "usp/base/json_format.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"
#include "usp/kernels/rounding.hpp"
#include "usp/schedule/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace usp {
namespace {

std::vector<Pass> passes_of(const RunResult& run) {
  return run.training ? std::vector<Pass>{Pass::forward, Pass::backward} : std::vector<Pass>{Pass::forward};
}

int index(Pass pass) {
  return pass == Pass::forward ? 0 : 1;
}

i64 max_workspace(const RunResult& run, Pass pass) {
  i64 most = 0;
  for (const RankResult& rank : run.ranks) most = std::max(most, rank.record[index(pass)].workspace_bytes);
  return most;
}

/// Of the rank that touched most; -1 when not measured.
i64 max_touched(const RunResult& run, Pass pass) {
  i64 most = -1;
  for (const RankResult& rank : run.ranks) most = std::max(most, rank.record[index(pass)].touched_bytes);
  return most;
}

/// Over all ranks.
i64 gated_calls(const RunResult& run, Pass pass) {
  i64 sum = 0;
  for (const RankResult& rank : run.ranks) sum += rank.record[index(pass)].gated_calls;
  return sum;
}

/// Nothing was computed or timed.
bool is_dry(const RunResult& run) {
  return run.ranks.front().seconds[0].empty();
}

/// The rank that plans most of its GPU's memory; null on the host.
const RankResult* fullest(const RunResult& run) {
  const auto most =
      std::max_element(run.ranks.begin(), run.ranks.end(), [](const RankResult& a, const RankResult& b) {
        return a.planned_memory_bytes < b.planned_memory_bytes;
      });
  return most == run.ranks.end() || most->planned_memory_bytes == 0 ? nullptr : &*most;
}

Json device_memory_json(const RunResult& run) {
  const RankResult* rank = fullest(run);
  if (rank == nullptr) return nullptr;
  return {{"planned_bytes", rank->planned_memory_bytes}, {"allocated_bytes", rank->held_memory_bytes}};
}

std::string device_memory_text(const RunResult& run) {
  const RankResult* rank = fullest(run);
  if (rank == nullptr) return "";
  return fmt::format("  memory    of the fullest rank's GPU: {} planned with its tensors, {} held\n",
                     format_bytes(static_cast<double>(rank->planned_memory_bytes)),
                     format_bytes(static_cast<double>(rank->held_memory_bytes)));
}

/// JSON has no NaN: a word replaces it.
Json number_json(double value) {
  return std::isfinite(value) ? Json(value) : Json("not finite");
}

Json error_json(const std::optional<ResultError>& error) {
  return error ? number_json(error->whole) : Json(nullptr);
}

/// What the whole of each result is held against.
Json bounds_json(const CallErrors& e, const Tolerance& tolerance) {
  const auto bound = [&](const std::optional<ResultError>& error, Pass pass) {
    return error ? number_json(whole_bound(*error, tolerance, pass)) : Json(nullptr);
  };
  return {{"out", bound(e.out, Pass::forward)}, {"lse", bound(e.lse, Pass::forward)},
          {"dq", bound(e.dq, Pass::backward)},  {"dk", bound(e.dk, Pass::backward)},
          {"dv", bound(e.dv, Pass::backward)},  {"d_sink", bound(e.d_sink, Pass::backward)}};
}

/// The worst row and head of one result.
Json rows_json(const std::optional<ResultError>& error, DType type, Pass pass) {
  if (!error) return nullptr;
  const kernels::Deviation& d = error->rows;
  const kernels::Place4& at = d.overflow ? *d.overflow : d.at;
  return {{"ratio", d.overflow ? Json("terms overflow the type") : number_json(d.ratio)},
          {"bound", kernels::rounding_factor(type, pass)},
          {"batch", at.batch},
          {"token", at.token},
          {"head", at.head}};
}

Json rows_json(const CallErrors& e) {
  return {{"out", rows_json(e.out, e.dtype, Pass::forward)},
          {"lse", rows_json(e.lse, accumulator_of(e.dtype), Pass::forward)},
          {"dq", rows_json(e.dq, e.dtype, Pass::backward)},
          {"dk", rows_json(e.dk, e.dtype, Pass::backward)},
          {"dv", rows_json(e.dv, e.dtype, Pass::backward)},
          {"d_sink", rows_json(e.d_sink, e.dtype, Pass::backward)}};
}

Json pass_json(const RunResult& run, Pass pass) {
  const i64 touched = max_touched(run, pass);
  return {
      {"time_s", is_dry(run) ? Json(nullptr) : Json(run.seconds(pass))},
      {"traffic", {{"planned_bytes", run.planned_bytes(pass)}, {"executed_bytes", run.executed_bytes(pass)}}},
      {"workspace",
       {{"planned_bytes", max_workspace(run, pass)},
        {"used_bytes", touched < 0 ? Json(nullptr) : Json(touched)}}},
      {"gated_calls", gated_calls(run, pass)}};
}

const char* step_name(Pass pass) {
  return pass == Pass::forward ? "attend" : "attend_grad";
}

Json fallbacks_json(const RunResult& run, Backend backend) {
  Json list = Json::array();
  for (const kernels::BackendFallback& d : run.fallbacks())
    list.push_back({{"step", step_name(d.pass)},
                    {"reason", schedule::text_of(d.why, backend.of(d.pass))},
                    {"count", d.count}});
  return list;
}

std::string fallbacks_text(const RunResult& run, Backend backend) {
  std::string text;
  for (const kernels::BackendFallback& d : run.fallbacks())
    text += fmt::format(
        "  note      {} {} {} fell back from {} to the {} kernel, the plan expected none: {}\n", d.count,
        step_name(d.pass), d.count == 1 ? "call" : "calls", backend.of(d.pass)->display_name,
        word_of(fallback_of(backend, d.pass)), schedule::text_of(d.why, backend.of(d.pass)));
  return text;
}

using Named = std::pair<const char*, const std::optional<ResultError>&>;

std::string errors_text(const CallErrors& e, const Tolerance& tolerance) {
  const Named results[] = {{"out", e.out}, {"lse", e.lse}, {"dq", e.dq},
                           {"dk", e.dk},   {"dv", e.dv},   {"d_sink", e.d_sink}};
  std::string whole = "  errors    RMS against the fp64 oracle:", bounds = "\n            bounds",
              rows =
                  "  rows      the worst row and head of each, in roundings of its own terms:\n           ";
  for (const auto& [name, error] : results) {
    if (!error) continue;
    whole += fmt::format(" {} {:.2e}", name, error->whole);
    const Pass pass = name[0] == 'd' ? Pass::backward : Pass::forward;
    bounds += fmt::format(" {} {:.2e}", name, whole_bound(*error, tolerance, pass));
    const kernels::Deviation& d = error->rows;
    const kernels::Place4& at = d.overflow ? *d.overflow : d.at;
    rows += fmt::format(" {} {} (token {}, head {})", name,
                        d.overflow ? "overflows" : fmt::format("{:.3g}", d.ratio), at.token, at.head);
  }
  const DType sum = accumulator_of(e.dtype);
  return fmt::format("{}{}\n{}\n            bounds {:.3g} (out), {:.3g} (lse), {:.3g} (gradients)\n", whole,
                     bounds, rows, kernels::rounding_factor(e.dtype, Pass::forward),
                     kernels::rounding_factor(sum, Pass::forward),
                     kernels::rounding_factor(e.dtype, Pass::backward));
}

}  // namespace

std::string_view verdict_name(RunVerdict verdict) {
  switch (verdict) {
    case RunVerdict::verified:
      return "verified";
    case RunVerdict::wrong:
      return "wrong";
    case RunVerdict::not_verifiable:
      return "not_verifiable";
    case RunVerdict::not_verified:
      break;
  }
  return "not_verified";
}

RunVerdict verdict_of(const RunSummary& summary) {
  if (!summary.run.bytes_difference().empty()) return RunVerdict::wrong;
  if (!summary.errors) return RunVerdict::not_verified;
  // What overflows in one result spoils those that follow from it: none of them is known to be wrong.
  if (!summary.errors->verifiable()) return RunVerdict::not_verifiable;
  return exceeded(*summary.errors, summary.tolerance).empty() ? RunVerdict::verified : RunVerdict::wrong;
}

std::string run_fault(const RunSummary& summary) {
  const RunVerdict verdict = verdict_of(summary);
  if (verdict == RunVerdict::verified || verdict == RunVerdict::not_verified) return "";
  std::string text = verdict == RunVerdict::wrong ? "the run is wrong: " : "the run cannot be verified: ";
  const std::string results = summary.errors ? exceeded(*summary.errors, summary.tolerance) : "";
  if (!results.empty()) text += "against the fp64 oracle " + results;
  const std::string bytes = summary.run.bytes_difference();
  if (bytes.empty()) return text;
  return fmt::format("{}{}executed bytes are not the planned ones: {}", text, results.empty() ? "" : "; ",
                     bytes);
}

std::string run_json(const RunSummary& summary) {
  const RunResult& run = summary.run;
  const Mesh& mesh = summary.plan.mesh;
  const std::string difference = run.bytes_difference();
  Json json = json_header("usp.run");
  json["request"] = request_json(summary.request);
  json["plan_digest"] = summary.digest;
  json["mesh"] = mesh_json(mesh);
  json["ranks"] = mesh.size();
  json["communicator"] = run.communicator;
  json["kernel"] = run.kernel;
  json["dtype"] = word_of(summary.plan.shape.dtype);
  json["ok"] = run_fault(summary).empty();
  json["verdict"] = verdict_name(verdict_of(summary));
  const CallErrors errors = summary.errors.value_or(CallErrors{});
  json["errors"] = {{"out", error_json(errors.out)}, {"lse", error_json(errors.lse)},
                    {"dq", error_json(errors.dq)},   {"dk", error_json(errors.dk)},
                    {"dv", error_json(errors.dv)},   {"d_sink", error_json(errors.d_sink)}};
  json["bounds"] = bounds_json(errors, summary.tolerance);
  json["rows"] = rows_json(errors);
  json["tolerance"] =
      summary.errors ? Json{{"output", summary.tolerance.output}, {"gradient", summary.tolerance.gradient}}
                     : Json(nullptr);
  i64 planned = 0, executed = 0;
  for (const Pass pass : passes_of(run)) {
    planned += run.planned_bytes(pass);
    executed += run.executed_bytes(pass);
  }
  json["traffic"] = {{"planned_bytes", planned},
                     {"executed_bytes", executed},
                     {"equal", difference.empty()},
                     {"difference", difference.empty() ? Json(nullptr) : Json(difference)}};
  json["passes"] = {{"forward", pass_json(run, Pass::forward)},
                    {"backward", run.training ? pass_json(run, Pass::backward) : Json(nullptr)}};
  json["fallbacks"] = fallbacks_json(run, summary.plan.backend);
  json["device_memory"] = device_memory_json(run);
  return json.dump(2) + "\n";
}

namespace {

std::string verdict_text(const RunSummary& summary) {
  switch (verdict_of(summary)) {
    case RunVerdict::verified:
      return "verified: every result is within its bounds";
    case RunVerdict::not_verifiable:
      return "not verifiable: terms overflow the type, so that the run is neither shown right nor wrong";
    default:
      return "wrong";
  }
}

/// Of a gated plan that ran: whether its calls had gates.
std::string gated_text(const RunSummary& summary) {
  const RunResult& run = summary.run;
  if (!summary.plan.gated || is_dry(run)) return "";
  i64 calls = 0;
  for (const Pass pass : passes_of(run)) calls += gated_calls(run, pass);
  if (calls == 0)
    return "  gated     no call: these transfers have no gates, or ranks share a GPU; calls ran behind the "
           "arrival of their blocks\n";
  return fmt::format("  gated     {} of all ranks could begin before their blocks had arrived\n",
                     counted(calls, "call"));
}

}  // namespace

std::string run_text(const RunSummary& summary) {
  const RunResult& run = summary.run;
  const Mesh& mesh = summary.plan.mesh;
  std::string text =
      fmt::format("ring {} x ulysses {} on {} {} ({}), {} kernel, {}\n", mesh.ring(), mesh.ulysses,
                  mesh.size(), mesh.size() == 1 ? "rank" : "ranks", run.communicator,
                  is_dry(run) ? "no" : run.kernel, word_of(summary.plan.shape.dtype));
  for (const Pass pass : passes_of(run)) {
    const i64 touched = max_touched(run, pass);
    text += fmt::format(
        "  {}{}{}{} sent by all ranks, workspace {}{}\n", word_of(pass), pass == Pass::forward ? "   " : "  ",
        is_dry(run) ? "" : format_seconds(run.seconds(pass)) + ", ",
        format_bytes(static_cast<double>(run.executed_bytes(pass))),
        format_bytes(static_cast<double>(max_workspace(run, pass))),
        touched < 0 ? "" : fmt::format(" (touched {})", format_bytes(static_cast<double>(touched))));
  }
  text += gated_text(summary) + device_memory_text(run);
  const std::string difference = run.bytes_difference();
  text += fmt::format("  bytes     {}\n{}",
                      difference.empty() ? std::string("as planned, per rank, tick and peer")
                                         : "not as planned: " + difference,
                      fallbacks_text(run, summary.plan.backend));
  if (is_dry(run)) return text + "  dry run   every send meets its receive; nothing was moved or computed\n";
  if (!summary.errors) return text + "  errors    not verified; --verify compares with the fp64 oracle\n";
  return fmt::format("{}{}  verdict   {}\n", text, errors_text(*summary.errors, summary.tolerance),
                     verdict_text(summary));
}

}  // namespace usp
