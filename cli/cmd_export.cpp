// SPDX-License-Identifier: Apache-2.0
#include "cluster_flags.hpp"
#include "flag_group.hpp"

#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/cluster_summary.hpp"
#include "usp/planner/export_plan.hpp"

#include <iostream>
#include <memory>

namespace usp::cli {
namespace {

struct ExportFlags {
  std::string plan, script;
  const FrameworkTraits* framework = nullptr;
  ClusterFlags cluster;
};

/// The cluster that is named, else the shipped one that the plan was made for; empty: neither.
std::optional<topology::Cluster> cluster_of(const ExportFlags& flags, const PlanFile& plan,
                                            const CLI::App& verb, const Invocation& invocation) {
  if (flags.cluster.request.source.empty()) {
    for (const CLI::Option* option : verb.get_options())
      if (option->count() > 0 && option->get_group() == "Cluster")
        throw UsageError(option->get_name() + " describes a cluster, and none is named; give --cluster too");
    auto cluster = cluster_of_plan(plan);
    if (!cluster)
      note(invocation,
           "the plan's cluster '" + plan.cluster +
               "' is no shipped one as it stands: no prices, and hosts are variables of the launch "
               "lines; give --cluster and the flags beside it that the plan was made with");
    return cluster;
  }
  topology::Cluster cluster = load_cluster(flags.cluster, invocation);
  if (cluster_digest(cluster) != plan.cluster_digest)
    note(invocation, "--cluster is not the one that the plan was made for: prices compare two clusters");
  return cluster;
}

void export_to(const ExportFlags& flags, const CLI::App& verb, const Invocation& invocation) {
  const PlanFile plan = read_plan(read_file(flags.plan), flags.plan);
  const std::optional<topology::Cluster> cluster = cluster_of(flags, plan, verb, invocation);
  std::optional<Calibration> calibration;
  if (cluster) calibration = calibration_or_sheet(*cluster, flags.cluster.calibration, note_sink(invocation));
  if (calibration) note_void_p2p(flags.cluster, *cluster, *calibration, invocation);
  if (calibration && !calibration->other_card.empty()) note(invocation, calibration->other_card);
  ExportRequest request;
  request.plan = &plan;
  request.framework = flags.framework;
  request.script = flags.script;
  if (flags.plan != "-") request.plan_file = flags.plan;
  if (cluster) request.cluster = &*cluster, request.calibration = &*calibration;
  const ExportedPlan result = export_plan(request);
  std::cout << (invocation.json ? export_json(request, result) : export_text(request, result));
}

}  // namespace

void register_export(CLI::App& app, Invocation& invocation) {
  const Verb verb =
      add_verb(app, invocation, "export",
               "Take a plan to a framework: settings, launch lines, what it cannot do and the cost",
               "  usp export plan.json --to megatron\n"
               "  usp export plan.json --to accelerate --script train.py\n"
               "  usp export plan.json --to deepspeed --cluster dgx-h100 --nodes 4 --json");
  auto flags = std::make_shared<ExportFlags>();
  FlagGroup group(verb, plain_group);
  group.option("PLAN", flags->plan, "plan file, '-' for stdin")->required()->type_name(input_file);
  group
      .parsed("--to", flags->framework, framework_words(),
              [](const std::string& word, const std::string& flag) { return &framework_named(word, flag); })
      ->required();
  group.option("--script", flags->script, "that the launch lines start; default: the framework's");
  add_cluster_flags(verb, flags->cluster, "--cluster")->required(false);
  add_calibration_flag(verb, flags->cluster, plain_group, "the cluster names");
  verb.runs([flags, app = &verb.app, &invocation] { export_to(*flags, *app, invocation); });
}

}  // namespace usp::cli
