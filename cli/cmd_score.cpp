// SPDX-License-Identifier: Apache-2.0
#include "cluster_flags.hpp"
#include "flag_group.hpp"
#include "progress.hpp"

#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/score_predict.hpp"
#include "usp/planner/step_score.hpp"

#include <iostream>
#include <memory>

namespace usp::cli {
namespace {

struct ScoreFlags {
  std::string csv;
  ClusterFlags cluster;
  i64 gate = 32768;
};

/// A table of whole steps names its machines itself.
void score_table_of_steps(const ScoreFlags& flags, const std::string& text, const Invocation& invocation) {
  if (!flags.cluster.request.source.empty() || !flags.cluster.calibration.empty())
    throw UsageError("a table of steps names the card of each run; leave --cluster and --calibration out");
  ProgressLine line(invocation);
  const StepScore result = score_steps(parse_step_table(text, flags.csv), flags.csv, &line);
  std::cout << (invocation.json ? step_score_json(result) : step_score_text(result));
}

void score(const ScoreFlags& flags, const Invocation& invocation) {
  const std::string text = read_file(flags.csv);
  if (is_step_table(text)) return score_table_of_steps(flags, text, invocation);
  if (flags.cluster.request.source.empty())
    throw UsageError("no machine is named: give --cluster, that which was measured");
  const topology::Cluster cluster = load_cluster(flags.cluster, invocation);
  const Calibration calibration = calibration_of(cluster, flags.cluster.calibration);
  note_void_p2p(flags.cluster, cluster, calibration, invocation);
  ProgressLine line(invocation);
  const ScoreReport report =
      score_on(cluster, calibration, parse_score_csv(text, flags.csv), flags.csv, flags.gate, &line);
  std::cout << (invocation.json ? score_json(report) : score_text(report));
}

}  // namespace

void register_score(CLI::App& app, Invocation& invocation) {
  const Verb verb =
      add_verb(app, invocation, "score", "Compare predictions with a table of measured calls or steps",
               "  usp score measured.csv --cluster a100-sxm\n"
               "  usp score steps.csv --json\n"
               "  usp score measured.csv --cluster node.txt --device l20 --calibration l40s\n"
               "  usp score - --cluster l40s --curves nccl.txt --json < measured.csv");
  auto flags = std::make_shared<ScoreFlags>();
  FlagGroup group(verb, plain_group);
  group
      .option("CSV", flags->csv,
              "table with the columns machine, world, direction, causal, dtype, batch, seq, heads, "
              "kv_heads, head_dim, ring, ulysses, layout, exchange, iters_per_s (OOM: out of memory); or of "
              "whole "
              "steps, with tokens_per_s_per_gpu among its columns")
      ->required()
      ->type_name(input_file);
  add_cluster_flags(verb, flags->cluster, "--cluster")->required(false);
  add_calibration_flag(verb, flags->cluster, plain_group, "the cluster names");
  group.tokens("--gate", flags->gate, "groups of this many tokens and more are summed up first (32k)");
  verb.runs([flags, &invocation] { score(*flags, invocation); });
}

}  // namespace usp::cli
