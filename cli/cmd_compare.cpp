// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"
#include "step_flags.hpp"

#include "usp/base/error.hpp"
#include "usp/planner/compare.hpp"

#include <iostream>
#include <memory>

namespace usp::cli {
namespace {

struct CompareFlags {
  StepFlags step;
};

void compare(const CompareFlags& flags, const Invocation& invocation) {
  check_csv(invocation);
  if (flags.step.search.top)
    throw UsageError("--top keeps candidates of one plan, and compare lists none; leave it out");
  const auto input = load_step(flags.step, invocation);
  const Comparison result =
      with_progress(invocation, input->request, [&] { return compare_ways(input->request); });
  if (invocation.csv)
    std::cout << compare_csv(result);
  else
    std::cout << (invocation.json ? compare_json(input->request, result)
                                  : compare_text(input->request, result));
}

}  // namespace

void register_compare(CLI::App& app, Invocation& invocation) {
  const Verb verb = add_verb(app, invocation, "compare",
                             "Ways to divide a sequence side by side: ours, and what frameworks have",
                             "  usp compare llama-3.1-8b --seq 1M --cluster dgx-h100 --nodes 4\n"
                             "  usp compare qwen3-8b --seq 256k --cluster l40s --data 2 --csv");
  auto flags = std::make_shared<CompareFlags>();
  add_step_flags(verb, flags->step);
  add_csv_flag(verb);
  verb.runs([flags, &invocation] { compare(*flags, invocation); });
}

}  // namespace usp::cli
