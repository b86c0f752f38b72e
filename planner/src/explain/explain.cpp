// SPDX-License-Identifier: Apache-2.0
#include "explain_view.hpp"
#include "print_parts.hpp"
#include "request_json.hpp"

#include "usp/base/json_format.hpp"
#include "usp/base/table.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/detail/axes.hpp"
#include "usp/planner/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace usp {
namespace {

constexpr std::size_t max_rows = 64;  ///< of a table for people
constexpr std::size_t max_runs = 4;

/// Pairs of long sequences are more than 64 bits count.
bool fits(i128 value) {
  return value <= std::numeric_limits<i64>::max();
}

std::string run_text(const Run& run) {
  if (run.count == 1) return std::to_string(run.first);
  const std::string range = fmt::format("{}-{}", run.first, run.first + (run.count - 1) * run.step);
  return run.step == 1 ? range : fmt::format("{} by {}", range, run.step);
}

std::string runs_text(const std::vector<Run>& runs) {
  if (runs.empty()) return "none";
  std::string text;
  for (std::size_t i = 0; i < runs.size() && i < max_runs; ++i)
    text += (i == 0 ? "" : ", ") + run_text(runs[i]);
  if (runs.size() > max_runs) text += fmt::format(", and {} more", runs.size() - max_runs);
  return text;
}

std::string heads_text(Range heads) {
  if (heads.size() == 1) return std::to_string(heads.begin);
  return fmt::format("{}-{}", heads.begin, heads.end - 1);
}

std::string devices_text(const std::vector<int>& devices) {
  return devices.size() <= 8 ? rank_list(devices)
                             : fmt::format("{} and {} more", devices.front(), devices.size() - 1);
}

std::string ranks_table(const PlanFile& plan, const ExplainView& view) {
  using Align = TextTable::Align;
  TextTable table;
  for (const char* name : {"rank", "ring", "ulysses"}) table.column(name, Align::right);
  table.column(plan.placement.groups() > 1 ? "devices" : "device");
  for (const char* name : {"query heads", "kv heads"}) table.column(name);
  table.column("tokens", Align::right);
  table.column("which");
  for (const RankView& r : view.ranks) {
    if (static_cast<std::size_t>(r.rank) >= max_rows) break;
    table.row({std::to_string(r.rank), std::to_string(r.ring), std::to_string(r.ulysses),
               devices_text(r.devices), heads_text(r.query_heads), heads_text(r.kv_heads),
               std::to_string(r.tokens), runs_text(r.runs)});
  }
  std::string text = table.str(2);
  if (view.ranks.size() > max_rows)
    text +=
        fmt::format("  ... and {} (--json lists all)\n", counted(view.ranks.size() - max_rows, "more rank"));
  return text;
}

std::string ranks_text(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") +
         (ranks.size() > 16 ? fmt::format("{} of them", ranks.size()) : rank_list(ranks));
}

std::string peers_text(const MessageView& m) {
  return ranks_text(m.peers);
}

std::string message_text(const MessageView& m, bool arrival) {
  const std::string tensors = fmt::format("{} ({})", m.what, m.move);
  const std::string size = fmt::format("{} {}", format_bytes(static_cast<double>(m.bytes)), word_of(m.wire));
  if (arrival)
    return fmt::format("{}{} from {}, {}", m.add ? "add  " : "land ", tensors, peers_text(m), size);
  return fmt::format("{} {} {} {}, {}{}{}", m.send ? "send" : "recv", tensors, m.send ? "to" : "from",
                     peers_text(m), size, m.early ? ", each block once it is complete" : "",
                     m.due > m.start ? fmt::format(", due at the end of tick {}", m.due) : "");
}

std::string step_text(const StepView& step) {
  if (step.kind == "delta") return "delta: rowsum(dO * O) for query heads " + heads_text(step.query_heads);
  std::string kind = step.kind;
  if (step.joined) kind += ", in the same call";
  if (!step.awaits.empty()) kind += fmt::format(", once k v of {} landed", ranks_text(step.awaits));
  return fmt::format("{}: query heads {}, kv heads {}, {}, {} {} per head, by {}{}", kind,
                     heads_text(step.query_heads), heads_text(step.kv_heads), counted(step.slices, "slice"),
                     fits(step.pairs) ? std::to_string(static_cast<i64>(step.pairs))
                                      : format_fixed(static_cast<double>(step.pairs), 0),
                     step.pairs == 1 ? "pair" : "pairs", word_of(step.backend.use),
                     step.reason.empty() ? "" : ": " + step.reason);
}

std::string bind_text(const std::vector<BindView>& binds) {
  i64 bytes = 0;
  std::vector<std::string> names;
  for (const BindView& bind : binds) {
    bytes += bind.bytes;
    if (std::find(names.begin(), names.end(), bind.name) == names.end()) names.push_back(bind.name);
  }
  return fmt::format("bind {} ({})", fmt::join(names, ", "), format_bytes(static_cast<double>(bytes)));
}

std::string schedule_text(const ExplainRequest& request, const ExplainView& view) {
  std::string text =
      fmt::format("\nschedule of rank {}, {}: {}, sends {}, receives {}, workspace {}{}\n", *request.rank,
                  word_of(request.pass), counted(view.ticks.size(), "tick"),
                  format_bytes(static_cast<double>(view.sent_bytes)),
                  format_bytes(static_cast<double>(view.received_bytes)),
                  format_bytes(static_cast<double>(view.workspace_bytes)),
                  view.kernel_scratch_bytes == 0
                      ? ""
                      : ", kernel scratch " + format_bytes(static_cast<double>(view.kernel_scratch_bytes)));
  for (std::size_t t = 0; t < view.ticks.size(); ++t) {
    const TickView& tick = view.ticks[t];
    text += fmt::format("  tick {}\n", t);
    const auto line = [&](const std::string& what) { text += fmt::format("    {}\n", what); };
    if (!tick.binds.empty()) line(bind_text(tick.binds));
    for (const MessageView& m : tick.posts)
      if (m.bytes > 0) line(message_text(m, false));
    for (const StepView& step : tick.steps) line(step_text(step));
    for (const MessageView& m : tick.arrivals)
      if (m.bytes > 0) line(message_text(m, true));
  }
  return text;
}

std::string headline(const PlanFile& plan, const PlanLayer& layer) {
  const AttentionShape& s = layer.plan.shape;
  std::string text = fmt::format("{} on {}\n  ring {} x ulysses {}, {}", plan.model, plan.cluster,
                                 plan.mesh.ring(), plan.mesh.ulysses, word_of(layer.plan.layout));
  if (plan.mesh.ring() > 1) text += fmt::format(", {}", word_of(layer.plan.method));
  text += gated_text(layer.plan.gated, layer.plan.gate_phases);
  if (plan.placement.tensor > 1) text += fmt::format(", tensor {}", plan.placement.tensor);
  if (plan.placement.data > 1) text += fmt::format(", data {}", plan.placement.data);
  if (plan.pipeline > 1) text += fmt::format(", pipeline {}", plan.pipeline);
  if (plan.inputs.step && plan.inputs.step->expert > 1)
    text += fmt::format(", expert {}", plan.inputs.step->expert);
  text += fmt::format("\n  {} attention of {}/{} heads, dim {}{}, {} tokens", layer.kind, s.query_heads,
                      s.kv_heads, s.head_dim_qk,
                      s.head_dim_v == s.head_dim_qk ? "" : fmt::format(" (values {})", s.head_dim_v),
                      format_tokens(s.q_tokens));
  if (s.kv_tokens != s.q_tokens) text += fmt::format(" against {} keys", format_tokens(s.kv_tokens));
  if (s.batch > 1) text += fmt::format(", batch {}", s.batch);
  if (!layer.layers.empty()) text += fmt::format(", {}", counted(layer.layers.size(), "layer"));
  if (layer.per_layer > 1) text += fmt::format(" with {} of it each", layer.per_layer);
  return text + "\n";
}

Json range_json(Range range) {
  return Json::array({range.begin, range.end});
}

Json message_json(const MessageView& m) {
  return {{"transfer", m.move},    {"tensors", m.what}, {"direction", m.send ? "send" : "receive"},
          {"accumulate", m.add},   {"early", m.early},  {"wire_dtype", word_of(m.wire)},
          {"start_tick", m.start}, {"due_tick", m.due}, {"peers", m.peers},
          {"bytes", m.bytes}};
}

/// A step that attends to nothing is no matter of a backend.
Json step_json(const StepView& s) {
  const bool attends = s.kind != "delta";
  Json json = {
      {"kind", s.kind},
      {"query_heads", range_json(s.query_heads)},
      {"kv_heads", range_json(s.kv_heads)},
      {"slices", s.slices},
      {"pairs_per_head",
       fits(s.pairs) ? Json(static_cast<i64>(s.pairs)) : Json(static_cast<double>(s.pairs))},
      {"backend", attends ? Json(word_of(s.backend.use)) : Json(nullptr)},
  };
  for (const Backend fallback : backends())
    if (is_fallback(fallback))
      json["slices_to_" + std::string(word_of(fallback))] = s.left_to == fallback ? s.backend.left : 0;
  json["reason"] = s.reason.empty() ? Json(nullptr) : Json(s.reason);
  json["joined"] = s.joined;
  json["awaits"] = s.awaits;
  return json;
}

Json ticks_json(const ExplainView& view) {
  Json ticks = Json::array();
  for (const TickView& tick : view.ticks) {
    Json json = {{"buffers", Json::array()},
                 {"posts", Json::array()},
                 {"steps", Json::array()},
                 {"arrivals", Json::array()}};
    for (const BindView& b : tick.binds)
      json["buffers"].push_back({{"name", b.name},
                                 {"rows", b.rows},
                                 {"heads", b.heads},
                                 {"width", b.width},
                                 {"bytes", b.bytes},
                                 {"first_tick", b.first},
                                 {"last_tick", b.last},
                                 {"in_workspace", b.internal}});
    for (const MessageView& m : tick.posts) json["posts"].push_back(message_json(m));
    for (const StepView& s : tick.steps) json["steps"].push_back(step_json(s));
    for (const MessageView& m : tick.arrivals) json["arrivals"].push_back(message_json(m));
    ticks.push_back(std::move(json));
  }
  return ticks;
}

}  // namespace

std::string explain_text(const PlanFile& plan, const ExplainRequest& request) {
  const ExplainView view = explain_view(plan, request);
  const PlanLayer& layer = plan.layers[request.layer];
  std::string text = headline(plan, layer);
  if (plan.layers.size() > 1) {
    text += fmt::format("  one of {} kinds of attention layer (--layer):", plan.layers.size());
    for (std::size_t i = 0; i < plan.layers.size(); ++i)
      text += fmt::format("{}{} {}", i == 0 ? " " : ", ", i, plan.layers[i].kind);
    text += "\n";
  }
  text += "\nwhy\n";
  for (const std::string& line : view.why) text += fmt::format("  {}\n", line);
  text += "\nranks of a group (tokens are 0-based, ends included)\n" + ranks_table(plan, view);
  if (view.has_schedule) text += schedule_text(request, view);
  return text;
}

std::string explain_json(const PlanFile& plan, const ExplainRequest& request) {
  const ExplainView view = explain_view(plan, request);
  Json json = json_header("usp.explain");
  json["request"] = request_json(request, plan_digest(plan));
  json["mesh"] = mesh_json(plan.mesh);
  json["reasons"] = view.why;
  json["ranks"] = Json::array();
  for (const RankView& r : view.ranks) {
    Json tokens = Json::array();
    for (const Run& run : r.runs)
      tokens.push_back({{"first", run.first}, {"count", run.count}, {"step", run.step}});
    json["ranks"].push_back({{"rank", r.rank},
                             {"ring", r.ring},
                             {"ulysses", r.ulysses},
                             {"devices", r.devices},
                             {"query_heads", range_json(r.query_heads)},
                             {"kv_heads", range_json(r.kv_heads)},
                             {"tokens", tokens}});
  }
  json["schedule"] = nullptr;
  if (view.has_schedule)
    json["schedule"] = {{"sent_bytes", view.sent_bytes},
                        {"received_bytes", view.received_bytes},
                        {"workspace_bytes", view.workspace_bytes},
                        {"kernel_scratch_bytes", view.kernel_scratch_bytes},
                        {"ticks", ticks_json(view)}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace usp
