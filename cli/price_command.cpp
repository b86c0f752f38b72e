// SPDX-License-Identifier: Apache-2.0
#include "price_command.hpp"

#include "arguments.hpp"

#include "usp/planner/price_report.hpp"
#include "usp/schedule/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace usp::cli {
namespace {

/// Of the call and its machine: both verbs have them.
const std::set<std::string> of_both{
    "--heads",  "--kv-heads", "--head-dim",  "--head-dim-v", "--seq",          "--batch",      "--dtype",
    "--causal", "--full",     "--documents", "--window",     "--forward-only", "--calibration"};
const std::set<std::string> of_exchange{"--transport", "--no-overlap"};
/// What the plan decided, or what changes no price.
const std::set<std::string> decided{"--ring",  "--ulysses",     "--method", "--layout",      "--dkv-return",
                                    "--order", "--head-chunks", "--gated",  "--gate-phases", "--backend",
                                    "--data",  "--tensor",      "--top",    "--output",      "--quiet",
                                    "--color", "--json",        "--help"};

bool of_cluster(const CLI::Option& option) {
  return option.get_group() == "Cluster" && option.get_name(false, false) != "--ranks";
}

/// Whether a value is read once: standard input, or a pipe that the shell made for this command.
bool is_stream(const std::string& value) {
  return value == "-" || value.rfind("/dev/", 0) == 0;
}

/// Whether `usp price` understands all that was given.
bool has_flags_for(const CLI::App& verb) {
  const auto given = verb.get_options([](const CLI::Option* option) { return option->count() > 0; });
  return std::all_of(given.begin(), given.end(), [](const CLI::Option* option) {
    const std::string name = option->get_name(false, false);
    const auto& values = option->results();
    const bool streamed = std::any_of(values.begin(), values.end(), is_stream);
    if (decided.count(name) > 0) return true;
    return !streamed && (of_both.count(name) > 0 || of_exchange.count(name) > 0 || of_cluster(*option));
  });
}

std::string layout_flags(const AttentionPlan& plan, const Placement& placement, bool forward_only) {
  const Mesh& mesh = plan.mesh;
  std::string text = fmt::format("--ring {} --ulysses {}", mesh.ring(), mesh.ulysses);
  if (mesh.ring() > 1) {
    text += fmt::format(" --method {} --layout {}", word_of(plan.method), word_of(plan.layout));
    if (plan.method->two_level_ring) text += fmt::format(" --ring-inner {}", mesh.ring_inner);
    if (plan.dkv_return != DkvReturn::circulate && !forward_only)
      text += fmt::format(" --dkv-return {}", word_of(plan.dkv_return));
    if (plan.gated) text += " --gated";
    if (plan.gate_phases > 1) text += fmt::format(" --gate-phases {}", plan.gate_phases);
    if (plan.prune) text += " --prune";
  }
  if (mesh.ring() > 1 && mesh.ulysses > 1) text += fmt::format(" --order {}", word_of(placement.order));
  if (plan.head_chunks > 1) text += fmt::format(" --head-chunks {}", plan.head_chunks);
  return fmt::format("{} --backend {}", text, word_of(plan.backend));
}

}  // namespace

std::string price_command(const CLI::App& verb, const AttentionCandidate& candidate) {
  const AttentionPlan& plan = candidate.plan;
  const Placement& placement = candidate.placement;
  if (placement.groups() > 1 || !placement.devices.empty() || !has_flags_for(verb)) return "";
  if (plan.layout != default_layout(plan.mesh, plan.band) && plan.mesh.ring() == 1) return "";
  const bool forward_only = verb.get_option("--forward-only")->count() > 0;
  const std::string call = arguments_of(verb, [&](const std::string& name) {
    if (of_exchange.count(name) > 0) return plan.mesh.size() > 1;
    const CLI::Option* const option = verb.get_option_no_throw(name);
    return of_both.count(name) > 0 || (option != nullptr && of_cluster(*option));
  });
  return fmt::format("usp price {} {}", call, layout_flags(plan, placement, forward_only));
}

}  // namespace usp::cli
