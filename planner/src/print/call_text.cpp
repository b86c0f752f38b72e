// SPDX-License-Identifier: Apache-2.0
#include "print_parts.hpp"

#include "usp/base/table.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/plan_print.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace usp {
namespace {

using Align = TextTable::Align;
constexpr std::size_t max_rows = 6;

std::string call_text(const AttentionRequest& request) {
  const AttentionShape& s = request.shape;
  std::string text =
      fmt::format("attention of {}/{} heads, dim {}{}, {} {}", s.query_heads, s.kv_heads, s.head_dim_qk,
                  s.head_dim_v == s.head_dim_qk ? "" : fmt::format(" (values {})", s.head_dim_v),
                  format_tokens(s.q_tokens), plural(s.q_tokens, "token"));
  if (s.kv_tokens != s.q_tokens) text += fmt::format(" against {} keys", format_tokens(s.kv_tokens));
  text += fmt::format(" x batch {}", s.batch);
  if (request.lengths.size() > 1) text += fmt::format(" of {} documents each", request.lengths.size());
  if (request.band.diff_max < unbounded)
    text += request.band.diff_min == 0
                ? fmt::format(", window {}", request.band.diff_max + 1)
                : fmt::format(", window of {} before and {} after", counted(request.band.diff_max, "token"),
                              -request.band.diff_min);
  else
    text += request.band.diff_min == 0 ? ", causal" : ", full";
  text += request.training ? ", forward and backward" : ", forward only";
  return fmt::format("{}\non {}, {}\n", text, request.cluster->name,
                     counted(request.cluster->devices.size(), "device"));
}

std::string pass_text(const char* name, const PassPrice& pass, bool calibrated) {
  return fmt::format("\n  {}{}, of it {} kernels and {} exchange that shows; {} sent by a rank", name,
                     time_text(pass.seconds, pass.band, calibrated), format_seconds(pass.compute_s),
                     format_seconds(pass.exposed_s), format_bytes(pass.wire_bytes));
}

/// Variants of one mesh often cost the same: a reader wants the meshes side by side.
std::vector<const AttentionCandidate*> best_of_meshes(const AttentionResult& result) {
  std::vector<const AttentionCandidate*> list;
  for (const AttentionCandidate& c : result.candidates) {
    const Mesh& mesh = c.plan.mesh;
    const bool seen = std::any_of(list.begin(), list.end(), [&](const AttentionCandidate* other) {
      return other->plan.mesh.ring() == mesh.ring() && other->plan.mesh.ulysses == mesh.ulysses;
    });
    if (!seen && list.size() < max_rows) list.push_back(&c);
  }
  return list;
}

/// How many other ways on the same mesh cost as much, to a tenth of a percent. Simpler ones may come before
/// some that are a little faster.
std::string equals_text(const AttentionResult& result) {
  const AttentionCandidate& best = result.best();
  std::string text;
  std::size_t count = 0;
  for (std::size_t i = 1; i < result.candidates.size(); ++i) {
    const AttentionCandidate& c = result.candidates[i];
    const bool same_mesh =
        c.plan.mesh.ring() == best.plan.mesh.ring() && c.plan.mesh.ulysses == best.plan.mesh.ulysses;
    if (!same_mesh || std::abs(c.seconds() / best.seconds() - 1) > 0.001) continue;
    if (count++ == 0) text = describe(c);
  }
  if (count == 0) return "";
  return fmt::format("as fast within 0.1%: {}{}\n", text,
                     count > 1 ? fmt::format(", and {} more", count - 1) : "");
}

/// Why a slower backend may be as fast.
std::string overlap_text(double band, double best_band) {
  return fmt::format(", a tie: known to {} and {}", format_percent(band), format_percent(best_band));
}

/// How much slower the other measured backends are, and why some do not take the call.
std::string backends_text(const AttentionResult& result) {
  std::vector<std::string> slower, refused;
  for (const BackendPrice& b : result.backends) {
    if (b.backend == result.best().plan.backend) continue;
    if (b.objection.empty())
      slower.push_back(fmt::format("{} {} (+{}{})", word_of(b.backend), format_seconds(b.seconds),
                                   format_percent(b.seconds / result.best().seconds() - 1),
                                   b.tie ? overlap_text(b.band, result.best().band()) : ""));
    else
      refused.push_back(fmt::format("{}: {}", word_of(b.backend), b.objection));
  }
  std::string text;
  if (!slower.empty())
    text += fmt::format("            fastest by the calibration; {}\n", fmt::join(slower, ", "));
  for (const std::string& line : refused) text += fmt::format("            not {}\n", line);
  return text;
}

std::string candidates_text(const AttentionRequest& request, const AttentionResult& result) {
  const bool calibrated = result.calibration.calibrated;
  TextTable table;
  table.column("best of each mesh");
  table.column(time_header("time", calibrated), Align::right);
  table.column("slower", Align::right);
  table.column("forward", Align::right);
  if (request.training) table.column("backward", Align::right);
  table.column("buffers", Align::right);
  for (const AttentionCandidate* of_mesh : best_of_meshes(result)) {
    const AttentionCandidate& c = *of_mesh;
    std::vector<std::string> row = {describe(c), format_seconds(c.seconds()),
                                    "+" + format_percent(c.seconds() / result.best().seconds() - 1),
                                    format_seconds(c.price.forward.seconds)};
    if (request.training) row.push_back(format_seconds(c.price.backward.seconds));
    row.push_back(format_bytes(c.live_bytes));
    table.row(row);
  }
  return fmt::format("\n{}{}", table.str(), equals_text(result));
}

/// What fewer devices take, and that they are faster where they are.
std::string smaller_text(const AttentionResult& result) {
  if (result.smaller.empty()) return "";
  const auto named = [](const AttentionCandidate& c) {
    const int devices = c.plan.mesh.size();
    return devices == 1 ? std::string("one device") : fmt::format("{} devices", devices);
  };
  std::vector<std::string> parts;
  const AttentionCandidate* fastest = &result.best();
  for (const AttentionCandidate& c : result.smaller) {
    parts.push_back(fmt::format("{} {}", named(c), format_seconds(c.seconds())));
    if (c.seconds() < fastest->seconds()) fastest = &c;
  }
  std::string text = fmt::format("\nfewer devices: {}\n", fmt::join(parts, ", "));
  if (fastest != &result.best())
    text += fmt::format("faster on {}: {}; all {} devices lose {}\n", named(*fastest), describe(*fastest),
                        result.best().plan.mesh.size(),
                        format_percent(result.best().seconds() / fastest->seconds() - 1));
  return text;
}

std::string other_passes(const AttentionRequest& request, const AttentionResult& result) {
  if (!request.training) return "";
  std::string text;
  const bool calibrated = result.calibration.calibrated;
  const std::string best = describe(result.best());
  const std::string forward = describe(result.best_forward), backward = describe(result.best_backward);
  if (forward != best)
    text += fmt::format("forward alone is fastest with {}: {}\n", forward,
                        time_text(result.best_forward.price.forward.seconds,
                                  result.best_forward.price.forward.band, calibrated));
  if (backward != best)
    text += fmt::format("backward alone is fastest with {}: {}\n", backward,
                        time_text(result.best_backward.price.backward.seconds,
                                  result.best_backward.price.backward.band, calibrated));
  return text.empty() ? "" : "\n" + text;
}

}  // namespace

std::string attention_text(const AttentionRequest& request, const AttentionResult& result) {
  const AttentionCandidate& best = result.best();
  const bool calibrated = result.calibration.calibrated;
  const std::vector<AxisView> axes =
      axes_of(*request.cluster, best.plan.mesh, best.placement, 1, request.execution.transport);
  std::string text = fmt::format("{}\n{}", call_text(request), describe(best));
  if (request.training) text += "\n  time      " + time_text(best.seconds(), best.band(), calibrated);
  text += pass_text("forward   ", best.price.forward, calibrated);
  if (request.training) text += pass_text("backward  ", best.price.backward, calibrated);
  text +=
      fmt::format("\n  buffers   {} at the fullest tick\n  backend   {}\n", format_bytes(best.live_bytes),
                  schedule::backends_text(best.plan.backend, result.forward_steps, result.backward_steps));
  text += backends_text(result) + where_text(axes) + candidates_text(request, result) + smaller_text(result) +
          other_passes(request, result);
  if (result.margin > 0)
    text += fmt::format("\n{}the next mesh is {} slower{}\n", result.tie ? "a tie: " : "",
                        format_percent(result.margin),
                        result.tie ? ", less than the error of the terms that differ" : "");
  text += guesses_text(result.guesses);
  text += list_text("to settle it, measure first", result.tie_breaking_measurements);
  text += rejected_text(result.rejected) + groups_text(axes);
  for (const std::string& note : result.notes) text += fmt::format("\nnote: {}\n", note);
  return fmt::format("{}\n{}{} priced\n", text, summary_text(result.calibration),
                     counted(result.considered, "schedule"));
}

std::string describe(const AttentionCandidate& candidate) {
  const AttentionPlan& plan = candidate.plan;
  const Mesh& m = plan.mesh;
  std::string text = fmt::format("ring {} x ulysses {}, {}", m.ring(), m.ulysses, word_of(plan.layout));
  if (m.ring() > 1) {
    text += fmt::format(", {}", word_of(plan.method));
    if (plan.method->two_level_ring) text += fmt::format(" {}x{}", m.ring_outer, m.ring_inner);
    if (plan.dkv_return != DkvReturn::circulate) text += fmt::format(", dkv {}", word_of(plan.dkv_return));
    if (m.ulysses > 1) text += fmt::format(", {}", word_of(candidate.placement.order));
    text += gated_text(plan.gated, plan.gate_phases);
    if (plan.prune) text += ", pruned";
  }
  if (plan.head_chunks > 1) text += fmt::format(", {} head chunks", plan.head_chunks);
  if (candidate.uneven_heads) text += ", uneven heads";
  return text;
}

}  // namespace usp
