// SPDX-License-Identifier: Apache-2.0
#include "cluster_flags.hpp"
#include "progress.hpp"

#include "usp/base/file.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/score_predict.hpp"
#include "usp/schedule/limits.hpp"

#include <iostream>
#include <memory>

namespace usp::cli {
namespace {

struct ScoreFlags {
  std::string csv;
  std::string calibration;
  std::string gate = "32k";
};

}  // namespace

void register_score(CLI::App& app, Invocation& invocation) {
  CLI::App* verb = add_verb(app, invocation, "score", "Compare predictions with a table of measured calls",
                            "  usp score measured.csv --cluster a100-sxm\n"
                            "  usp score measured.csv --cluster node.txt --device l20 --calibration l40s\n"
                            "  usp score - --cluster l40s --curves nccl.txt --json < measured.csv");
  auto flags = std::make_shared<ScoreFlags>();
  verb->add_option("CSV", flags->csv,
                   "table with the columns machine, world, direction, causal, dtype, batch, seq, heads, "
                   "kv_heads, head_dim, ring, ulysses, layout, exchange, iters_per_s (OOM: out of memory)")
      ->required()
      ->type_name(input_file);
  auto cluster_flags = add_cluster_flags(*verb, "--cluster");
  verb->add_option("--calibration", flags->calibration,
                   "calibration file or shipped calibration; default: the one the cluster names")
      ->type_name(input_file);
  verb->add_option("--gate", flags->gate, "groups of this many tokens and more are summed up first")
      ->capture_default_str();
  verb->callback([&invocation, flags, cluster_flags] {
    invocation.action = [&invocation, flags, cluster_flags] {
      const std::int64_t gate = parse_tokens(flags->gate, "--gate", max_tokens);
      const Cluster cluster = load_cluster(*cluster_flags, invocation);
      const Calibration calibration = calibration_of(cluster, flags->calibration);
      ProgressLine line(invocation);
      const ScoreReport report = score_on(
          cluster, calibration, parse_score_csv(read_file(flags->csv), flags->csv), flags->csv, gate, &line);
      std::cout << (invocation.json ? score_json(report) : score_text(report));
    };
  });
}

}  // namespace usp::cli
