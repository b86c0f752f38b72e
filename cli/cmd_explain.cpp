// SPDX-License-Identifier: Apache-2.0
#include "run_flags.hpp"

#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/planner/explain.hpp"
#include "usp/planner/export_plan.hpp"
#include "usp/planner/plan_trace.hpp"
#include "usp/schedule/words.hpp"

#include <iostream>
#include <memory>

namespace usp::cli {
namespace {

struct ExplainFlags {
  PlanFileFlags plan;
  std::optional<int> rank;
  std::optional<Pass> pass;
  std::string trace;
  std::optional<int> trace_ranks;
};

/// Times are of the shipped cluster that the plan was made for, where there is one.
void write_trace(const ExplainFlags& flags, const PlanFile& plan, const Invocation& invocation) {
  const std::optional<topology::Cluster> cluster = cluster_of_plan(plan);
  std::optional<Calibration> calibration;
  if (cluster) calibration = calibration_or_sheet(*cluster, "", [](const std::string&) {});
  PlanTraceRequest request;
  request.plan = &plan;
  request.layer = flags.plan.layer;
  if (!flags.plan.documents.empty()) request.documents = flags.plan.documents;
  if (cluster) request.cluster = &*cluster, request.calibration = &*calibration;
  request.max_ranks = flags.trace_ranks.value_or(request.max_ranks);
  if (!cluster)
    note(invocation,
         "the plan's cluster '" + plan.cluster + "' is no shipped one as it stands: ticks are drawn alike");
  write_file(flags.trace, plan_trace(request));
}

void explain(const ExplainFlags& flags, const Invocation& invocation) {
  if (flags.trace_ranks && flags.trace.empty())
    throw UsageError("--trace-ranks is of --trace; give a file there");
  const PlanFile plan = read_plan(read_file(flags.plan.file), flags.plan.file);
  if (!flags.trace.empty()) write_trace(flags, plan, invocation);
  if (flags.trace == "-") return;
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
                             "  usp explain plan.json --rank 0 --json\n"
                             "  usp explain plan.json --trace trace.json");
  auto flags = std::make_shared<ExplainFlags>();
  add_plan_file_flags(verb, flags->plan);
  FlagGroup group(verb, plain_group);
  group.number("--rank", flags->rank, "print the schedule of this rank of a group (0 with --pass; else none)",
               0);
  group.word("--pass", flags->pass,
             word_choice<Pass>() + " (" + std::string(word_of(ExplainRequest{}.pass)) + ")");
  group
      .option("--trace", flags->trace,
              "write a Chrome trace of the plan, without running it (Perfetto opens it)")
      ->type_name(output_file);
  group.number("--trace-ranks", flags->trace_ranks, "ranks of the trace, from 0 (16)", 1, 4096);
  verb.runs([flags, &invocation] { explain(*flags, invocation); });
}

}  // namespace usp::cli
