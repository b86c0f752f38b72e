// SPDX-License-Identifier: Apache-2.0
#include "verb.hpp"

#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/planner/explain.hpp"
#include "usp/planner/workload.hpp"

#include <iostream>
#include <memory>

namespace usp::cli {
namespace {

struct ExplainFlags {
  std::string file;
  std::string pass;
  std::string documents;
  ExplainRequest request;
};

Pass parse_pass(const std::string& text) {
  if (text.empty() || text == "forward") return Pass::forward;
  if (text == "backward") return Pass::backward;
  throw UsageError("--pass: '" + text + "' is not one of forward, backward");
}

void explain(const ExplainFlags& flags, const Invocation& invocation) {
  const PlanFile plan = read_plan(read_file(flags.file), flags.file);
  ExplainRequest request = flags.request;
  request.pass = parse_pass(flags.pass);
  if (!flags.documents.empty()) request.documents = parse_document_lengths(flags.documents, "--documents");
  if (!request.rank && !flags.pass.empty()) request.rank = 0;
  std::cout << (invocation.json ? explain_json(plan, request) : explain_text(plan, request));
}

}  // namespace

void register_explain(CLI::App& app, Invocation& invocation) {
  CLI::App* verb = add_verb(app, invocation, "explain",
                            "Show what a plan file means: tokens of every rank, schedule of one, and why",
                            "  usp explain plan.json\n"
                            "  usp explain plan.json --rank 3 --pass backward\n"
                            "  usp explain plan.json --rank 0 --json");
  auto flags = std::make_shared<ExplainFlags>();
  verb->add_option("PLAN", flags->file, "plan file, '-' for stdin")->required()->type_name(input_file);
  verb->add_option("--rank", flags->request.rank,
                   "print the schedule of this rank of a group (0 with --pass; else none)")
      ->check(within(0));
  verb->add_option("--pass", flags->pass, "forward or backward (forward)");
  verb->add_option("--layer", flags->request.layer, "kind of attention layer, by its place in the plan (0)")
      ->check(within(std::size_t{0}));
  verb->add_option("--documents", flags->documents, "lengths of another batch within the plan's capacity");
  verb->callback(
      [flags, &invocation] { invocation.action = [flags, &invocation] { explain(*flags, invocation); }; });
}

}  // namespace usp::cli
