// SPDX-License-Identifier: Apache-2.0
#include "attention_flags.hpp"
#include "cluster_flags.hpp"

#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/price_report.hpp"

#include <iostream>

namespace usp::cli {

void register_price(CLI::App& app, Invocation& invocation) {
  CLI::App* verb = add_verb(
      app, invocation, "price", "Price one given layout of one attention call",
      "  usp price --heads 32 --kv-heads 8 --head-dim 128 --seq 128k --ring 1 --ulysses 8 --cluster "
      "dgx-h100\n"
      "  usp price --heads 64 --kv-heads 8 --head-dim 128 --seq 1M --ring 8 --ring-inner 2 --ulysses 4 "
      "--cluster dgx-h100 --nodes 4 --json\n"
      "  usp price --heads 28 --kv-heads 4 --head-dim 128 --seq 128k --documents 64k,40k,24k --layout "
      "balanced "
      "--ring 2 --ulysses 4 --cluster l40s");
  auto attention = add_attention_flags(*verb);
  auto layout = add_layout_flags(*verb, true);
  auto cluster_flags = add_cluster_flags(*verb, "--cluster");
  auto calibration_name = std::make_shared<std::string>();
  verb->add_option("--calibration", *calibration_name,
                   "calibration file or shipped calibration; default: the one the cluster names")
      ->type_name(input_file);
  verb->callback([=, &invocation] {
    invocation.action = [=, &invocation] {
      AttentionCall call;
      call.plan = layout->plan(*attention);
      call.documents = attention->packed_documents();
      call.placement = layout->placement();
      call.execution = layout->execution();
      call.backward = !attention->forward_only;
      const Cluster cluster = load_cluster(*cluster_flags, invocation);
      check_call(call, cluster);
      const Calibration calibration = calibration_of(cluster, *calibration_name);
      const PriceReport report = price_call(cluster, calibration, call);
      std::cout << (invocation.json ? price_json(report) : price_text(report));
    };
  });
}

}  // namespace usp::cli
