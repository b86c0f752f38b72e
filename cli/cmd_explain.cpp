// SPDX-License-Identifier: Apache-2.0
#include "run_flags.hpp"

#include "usp/base/file.hpp"
#include "usp/planner/explain.hpp"
#include "usp/schedule/words.hpp"

#include <iostream>
#include <memory>

namespace usp::cli {
namespace {

struct ExplainFlags {
  PlanFileFlags plan;
  std::optional<int> rank;
  std::optional<Pass> pass;
};

void explain(const ExplainFlags& flags, const Invocation& invocation) {
  const PlanFile plan = read_plan(read_file(flags.plan.file), flags.plan.file);
  ExplainRequest request;
  request.layer = flags.plan.layer;
  if (!flags.plan.documents.empty()) request.documents = flags.plan.documents;
  request.pass = flags.pass.value_or(request.pass);
  request.rank = flags.rank;
  if (!request.rank && flags.pass) request.rank = 0;
  std::cout << (invocation.json ? explain_json(plan, request) : explain_text(plan, request));
}

}  // namespace

void register_explain(CLI::App& app, Invocation& invocation) {
  const Verb verb = add_verb(app, invocation, "explain",
                             "Show what a plan file means: tokens of every rank, schedule of one, and why",
                             "  usp explain plan.json\n"
                             "  usp explain plan.json --rank 3 --pass backward\n"
                             "  usp explain plan.json --rank 0 --json");
  auto flags = std::make_shared<ExplainFlags>();
  add_plan_file_flags(verb, flags->plan);
  FlagGroup group(verb, plain_group);
  group.number("--rank", flags->rank, "print the schedule of this rank of a group (0 with --pass; else none)",
               0);
  group.word("--pass", flags->pass,
             word_choice<Pass>() + " (" + std::string(word_of(ExplainRequest{}.pass)) + ")");
  verb.runs([flags, &invocation] { explain(*flags, invocation); });
}

}  // namespace usp::cli
