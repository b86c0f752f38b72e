// SPDX-License-Identifier: Apache-2.0
#include "cluster_flags.hpp"
#include "flag_group.hpp"
#include "progress.hpp"

#include "usp/base/file.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/score_predict.hpp"

#include <iostream>
#include <memory>

namespace usp::cli {
namespace {

struct ScoreFlags {
  std::string csv;
  ClusterFlags cluster;
  i64 gate = 32768;
};

void score(const ScoreFlags& flags, const Invocation& invocation) {
  const topology::Cluster cluster = load_cluster(flags.cluster, invocation);
  const Calibration calibration = calibration_of(cluster, flags.cluster.calibration);
  ProgressLine line(invocation);
  const ScoreReport report = score_on(cluster, calibration, parse_score_csv(read_file(flags.csv), flags.csv),
                                      flags.csv, flags.gate, &line);
  std::cout << (invocation.json ? score_json(report) : score_text(report));
}

}  // namespace

void register_score(CLI::App& app, Invocation& invocation) {
  const Verb verb = add_verb(app, invocation, "score", "Compare predictions with a table of measured calls",
                             "  usp score measured.csv --cluster a100-sxm\n"
                             "  usp score measured.csv --cluster node.txt --device l20 --calibration l40s\n"
                             "  usp score - --cluster l40s --curves nccl.txt --json < measured.csv");
  auto flags = std::make_shared<ScoreFlags>();
  FlagGroup group(verb, plain_group);
  group
      .option("CSV", flags->csv,
              "table with the columns machine, world, direction, causal, dtype, batch, seq, heads, "
              "kv_heads, head_dim, ring, ulysses, layout, exchange, iters_per_s (OOM: out of memory)")
      ->required()
      ->type_name(input_file);
  add_cluster_flags(verb, flags->cluster, "--cluster");
  add_calibration_flag(verb, flags->cluster, plain_group, "the cluster names");
  group.tokens("--gate", flags->gate, "groups of this many tokens and more are summed up first (32k)");
  verb.runs([flags, &invocation] { score(*flags, invocation); });
}

}  // namespace usp::cli
