// SPDX-License-Identifier: Apache-2.0
#include "flag_effects.hpp"
#include "progress.hpp"
#include "step_flags.hpp"

#include "usp/base/error.hpp"
#include "usp/planner/whatif.hpp"

#include <algorithm>
#include <iostream>

namespace usp::cli {
namespace {

/// What the flags fix may be what an axis varies; an axis, too, may vary what has no effect.
void check_sweeps(StepFlags& flags, const std::vector<Axis>& axes) {
  const auto swept = [&](AxisKind kind) {
    return std::any_of(axes.begin(), axes.end(), [&](const Axis& axis) { return axis.kind == kind; });
  };
  flags.fixed.ring_varies = swept(AxisKind::ring);
  flags.fixed.ulysses_varies = swept(AxisKind::ulysses);
  if (!flags.fixed.ring_varies)
    refuse_without_ring(flags.fixed.ring, {{"--sweep method", swept(AxisKind::method)},
                                           {"--sweep layout", swept(AxisKind::layout)}});
  refuse_without_backward(flags.forward_only, {{"--sweep recompute", swept(AxisKind::recompute)}});
}

}  // namespace

void register_whatif(CLI::App& app, Invocation& invocation) {
  CLI::App* verb =
      add_verb(app, invocation, "whatif",
               "Plan again with other values: what changes, by how much, and where the lead turns",
               "  usp whatif llama-3.1-8b --seq 1M --cluster dgx-h100 --nodes 4 --sweep seq=128k:4m:x2 "
               "--sweep nic=25,50,100\n"
               "  usp whatif qwen3-8b --seq 256k --cluster l40s --sweep ulysses=1,2,4,8 --json\n"
               "  usp whatif llama-3.1-8b --seq 1M --cluster dgx-h100 --sweep memory=40GB:160GB:+20GB");
  auto flags = add_step_flags(*verb);
  auto sweeps = std::make_shared<std::vector<std::string>>();
  auto plain = std::make_shared<bool>(false);
  verb->add_option("--sweep", *sweeps,
                   "AXIS=VALUES, may be repeated and multiplies: seq, batch, nic and nvlink (bare numbers "
                   "are GB/s per NIC "
                   "or device; 400G is a line rate), memory, nodes, gpus, ring, ulysses, tensor, zero, "
                   "heads, kv_heads, "
                   "layout, method, recompute. VALUES: A,B,C or FIRST:LAST:xFACTOR or FIRST:LAST:+STEP")
      ->required()
      ->allow_extra_args(false);
  verb->add_flag("--no-break-even", *plain, "leave out the search for break-evens and the longest sequence");
  verb->callback([flags, sweeps, plain, &invocation] {
    invocation.action = [flags, sweeps, plain, &invocation] {
      if (flags->execution.top)
        throw UsageError("--top keeps candidates of one plan, and whatif lists none; leave it out");
      WhatIfRequest request;
      for (const std::string& sweep : *sweeps) request.axes.push_back(parse_axis(sweep));
      check_sweeps(*flags, request.axes);
      const auto input = load_step(*flags, invocation);
      request.base = input->request;
      request.break_evens = !*plain;
      const WhatIfResult result = with_progress(invocation, request, [&] { return what_if(request); });
      std::cout << (invocation.json ? whatif_json(request, result) + "\n" : whatif_text(result));
    };
  });
}

}  // namespace usp::cli
