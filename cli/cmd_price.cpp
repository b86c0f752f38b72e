// SPDX-License-Identifier: Apache-2.0
#include "call_flags.hpp"
#include "cluster_flags.hpp"
#include "flag_effects.hpp"
#include "mesh_flags.hpp"

#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/price_report.hpp"
#include "usp/planner/step_input.hpp"
#include "usp/schedule/generate.hpp"

#include <iostream>
#include <memory>

namespace usp::cli {
namespace {

struct PriceFlags {
  CallFlags call;
  MeshFlags mesh;
  std::optional<Backend> backend;
  ExecutionFlags execution;
  ClusterFlags cluster;
};

void price(const PriceFlags& flags, const Invocation& invocation) {
  const bool forward_only = flags.call.workload.forward_only;
  check_mesh(flags.mesh, forward_only);
  AttentionCall call;
  call.plan.shape = flags.call.shape();
  call.plan.band = flags.call.band();
  set_layout(flags.mesh, call.plan);
  refuse_without_exchange(call.plan.mesh.size(), {{"--transport", flags.execution.transport.has_value()},
                                                  {"--no-overlap", flags.execution.no_overlap}});
  call.documents = flags.call.packed_documents();
  call.placement = placement_of(flags.mesh);
  call.execution = flags.execution.options();
  call.backward = !forward_only;
  const topology::Cluster cluster = load_cluster(flags.cluster, invocation);
  check_transport(flags.execution, cluster);
  check_call(call, cluster);
  const Calibration calibration =
      calibration_or_sheet(cluster, flags.cluster.calibration, note_sink(invocation));
  note_void_p2p(flags.cluster, cluster, calibration, invocation);
  note_guessed_type(call.plan.shape.dtype, calibration, invocation);
  call.plan.backend = flags.backend ? *flags.backend : fastest_backend(cluster, calibration, call);
  call.plan.split_own_block = schedule::splits_own_block(call.plan);  // some backends take no half of a group
  const PriceReport report = price_call(cluster, calibration, call);
  std::cout << (invocation.json ? price_json(report) : price_text(report));
}

}  // namespace

void register_price(CLI::App& app, Invocation& invocation) {
  const Verb verb = add_verb(
      app, invocation, "price", "Price one given layout of one attention call",
      "  usp price --heads 32 --kv-heads 8 --head-dim 128 --seq 128k --ring 1 --ulysses 8 --cluster "
      "dgx-h100\n"
      "  usp price --heads 64 --kv-heads 8 --head-dim 128 --seq 1M --ring 8 --ring-inner 2 --ulysses 4 "
      "--cluster dgx-h100 --nodes 4 --json\n"
      "  usp price --heads 28 --kv-heads 4 --head-dim 128 --seq 128k --documents 64k,40k,24k --layout "
      "balanced "
      "--ring 2 --ulysses 4 --cluster l40s");
  auto flags = std::make_shared<PriceFlags>();
  add_call_flags(verb, flags->call);
  add_layout_flags(verb, flags->mesh);
  add_backend_flag(verb, flags->backend);
  add_execution_flags(verb, flags->execution, "Layout");
  add_cluster_flags(verb, flags->cluster, "--cluster");
  add_calibration_flag(verb, flags->cluster, plain_group, "the cluster names");
  verb.runs([flags, &invocation] { price(*flags, invocation); });
}

}  // namespace usp::cli
