// SPDX-License-Identifier: Apache-2.0
#include "flag_effects.hpp"
#include "progress.hpp"
#include "step_flags.hpp"

#include "usp/base/error.hpp"
#include "usp/planner/whatif.hpp"

#include <algorithm>
#include <iostream>
#include <memory>
#include <vector>

namespace usp::cli {
namespace {

struct WhatIfFlags {
  StepFlags step;
  std::vector<Axis> axes;
  bool no_break_even = false;
};

std::vector<Axis> parse_axes(const std::vector<std::string>& texts, const std::string&) {
  std::vector<Axis> axes;
  for (const std::string& text : texts) axes.push_back(parse_axis(text));
  return axes;
}

/// What the flags fix may be what an axis varies; an axis, too, may vary what has no effect.
SweptDegrees check_sweeps(const WhatIfFlags& flags) {
  const auto swept = [&](AxisKind kind) {
    return std::any_of(flags.axes.begin(), flags.axes.end(),
                       [&](const Axis& axis) { return axis.kind == kind; });
  };
  if (!swept(AxisKind::ring))
    refuse_without_ring(flags.step.search.mesh.fixed.ring, {{"--sweep method", swept(AxisKind::method)},
                                                            {"--sweep layout", swept(AxisKind::layout)}});
  const bool sharded = std::any_of(flags.axes.begin(), flags.axes.end(), [](const Axis& axis) {
    return axis.kind == AxisKind::zero &&
           std::any_of(axis.values.begin(), axis.values.end(),
                       [](const AxisValue& v) { return v.number == 1 || v.number == 2; });
  });
  refuse_without_backward(flags.step.workload.forward_only,
                          {{"--sweep recompute", swept(AxisKind::recompute)}, {"--sweep zero=1,2", sharded}});
  if (flags.step.global_batch && swept(AxisKind::batch))
    throw UsageError(
        "--sweep batch varies one replica's sequences and --global-batch fixes all of them; leave one of "
        "them out");
  return {swept(AxisKind::ring), swept(AxisKind::ulysses)};
}

void sweep(const WhatIfFlags& flags, const Invocation& invocation) {
  check_csv(invocation);
  if (flags.step.search.top)
    throw UsageError("--top keeps candidates of one plan, and whatif lists none; leave it out");
  const auto input = load_step(flags.step, invocation, check_sweeps(flags));
  WhatIfRequest request;
  request.axes = flags.axes;
  request.base = input->request;
  request.break_evens = !flags.no_break_even;
  const WhatIfResult result = with_progress(invocation, request, [&] { return what_if(request); });
  if (invocation.csv)
    std::cout << whatif_csv(result);
  else
    std::cout << (invocation.json ? whatif_json(request, result) + "\n"
                                  : whatif_text(result, invocation.brief));
}

}  // namespace

void register_whatif(CLI::App& app, Invocation& invocation) {
  const Verb verb =
      add_verb(app, invocation, "whatif",
               "Plan again with other values: what changes, by how much, and where the lead turns",
               "  usp whatif llama-3.1-8b --seq 1M --cluster dgx-h100 --nodes 4 --sweep seq=128k:4m:x2 "
               "--sweep nic=25,50,100\n"
               "  usp whatif qwen3-8b --seq 256k --cluster l40s --sweep ulysses=1,2,4,8 --json\n"
               "  usp whatif llama-3.1-8b --seq 1M --cluster dgx-h100 --sweep memory=40GB:160GB:+20GB");
  auto flags = std::make_shared<WhatIfFlags>();
  add_step_flags(verb, flags->step);
  FlagGroup group(verb, plain_group);
  group
      .parsed<std::vector<std::string>>(
          "--sweep", flags->axes,
          "AXIS=VALUES, may be repeated and multiplies: seq, batch, nic and nvlink (bare numbers "
          "are GB/s per NIC "
          "or device; 400G is a line rate), memory, nodes, gpus, ring, ulysses, tensor, zero, "
          "heads, kv_heads, "
          "layout, method, recompute. VALUES: A,B,C or FIRST:LAST:xFACTOR or FIRST:LAST:+STEP",
          parse_axes)
      ->required()
      ->allow_extra_args(false);
  group.flag("--no-break-even", flags->no_break_even,
             "leave out the search for break-evens and the longest sequence");
  add_brief_flag(verb);
  add_csv_flag(verb);
  verb.runs([flags, &invocation] { sweep(*flags, invocation); });
}

}  // namespace usp::cli
