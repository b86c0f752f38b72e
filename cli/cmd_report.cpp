// SPDX-License-Identifier: Apache-2.0
#include "arguments.hpp"
#include "progress.hpp"
#include "step_flags.hpp"

#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/planner/report.hpp"

#include <iostream>
#include <memory>
#include <set>
#include <string>

namespace usp::cli {
namespace {

struct ReportFlags {
  StepFlags step;
  std::string output = "usp-report.html";
};

/// The verb's flags as `usp plan` takes them: all but those of the report itself.
std::string plan_arguments(const CLI::App& verb) {
  const std::set<std::string> of_report = {"--output", "--json", "--quiet", "--color", "--top"};
  return arguments_of(verb, [&](const std::string& name) { return of_report.count(name) == 0; });
}

void write_report(const ReportFlags& flags, const CLI::App& verb, const Invocation& invocation) {
  const std::string& output = flags.output;
  if (output == "-" && invocation.json)
    throw UsageError("-o - prints the page on stdout, where --json prints its path; give one of them");
  const auto input = load_step(flags.step, invocation);
  check_degrees(input->request);
  PlanRequest& request = input->request;
  const PlanResult plan = with_progress(invocation, request, [&] { return plan_step(request); });
  const ReportSweep sweep = with_progress(invocation, request, [&] { return report_sweep(request, plan); });
  if (sweep.results.empty() && request.workload.documents.empty())
    note(invocation, "the machine is too large to plan it at other lengths here: the report has no sliders");
  write_file(output, report_html({&input->request, &plan, &sweep, plan_arguments(verb)}));
  if (output == "-") return;
  if (invocation.json)
    std::cout << report_json(request, output);
  else
    std::cout << output << "\n";
}

}  // namespace

void register_report(CLI::App& app, Invocation& invocation) {
  const Verb verb =
      add_verb(app, invocation, "report", "Write the plan of a step as one HTML file to look at",
               "  usp report llama-3.1-8b --seq 1M --cluster dgx-h100 --nodes 4 -o report.html\n"
               "  usp report config.json --seq 256k --cluster node.txt --device h100-sxm --nic 8x400G");
  auto flags = std::make_shared<ReportFlags>();
  add_step_flags(verb, flags->step);
  FlagGroup(verb, plain_group)
      .option("-o,--output", flags->output, "the file to write; - for stdout")
      ->type_name(output_file)
      ->capture_default_str();
  verb.runs([flags, app = &verb.app, &invocation] { write_report(*flags, *app, invocation); });
}

}  // namespace usp::cli
