// SPDX-License-Identifier: Apache-2.0
#include "run_flags.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/planner/workload.hpp"

namespace usp::cli {

std::shared_ptr<RunFlags> add_run_flags(CLI::App& verb) {
  auto flags = std::make_shared<RunFlags>();
  verb.add_option("PLAN", flags->file, "plan file, '-' for stdin")->required();
  verb.add_option("--layer", flags->layer, "kind of attention layer, by its place in the plan (0)")
      ->check(within(std::size_t{0}));
  verb.add_option("--documents", flags->documents, "lengths of another batch within the plan's capacity");
  verb.add_option("--seed", flags->seed, "of the random tensors and of dropout")
      ->check(within(std::uint64_t{0}))
      ->capture_default_str();
  verb.add_option("--kernel", flags->kernel, "cpu, reference, portable or cudnn (the plan's backend)");
  verb.add_option("--devices", flags->devices, "GPUs of the ranks, such as 0,1, round and round (all)")
      ->delimiter(',')
      ->check(within(0));
  verb.add_option("--watchdog", flags->watchdog_s, "seconds that a rank may wait for its peers")
      ->check(within(1e-3, 1e6))
      ->capture_default_str();
  verb.add_flag("--forward-only", flags->forward_only, "no backward pass, though the plan has one");
  return flags;
}

LoadedCall load_call(const RunFlags& flags) {
  LoadedCall call;
  call.file = read_plan(read_file(flags.file), flags.file);
  const PlanLayer& layer = layer_at(call.file, flags.layer);
  call.plan = layer.plan;
  const bool given = !flags.documents.empty();
  const std::vector<i64> lengths =
      given ? parse_document_lengths(flags.documents, "--documents") : call.file.documents;
  if (given) check_other_batch(call.file, layer, lengths);
  call.documents = layer_documents(layer, lengths);
  if (call.documents.cu_q.back() > call.plan.shape.q_tokens)
    throw UsageError("--documents: " + std::to_string(call.documents.cu_q.back()) +
                     " tokens exceed the plan's capacity of " + std::to_string(call.plan.shape.q_tokens));
  call.options.training = call.file.training && !flags.forward_only;
  call.options.kernel = flags.kernel;
  call.options.devices = flags.devices;
  call.options.ulysses_transport = call.file.ulysses_transport;
  call.options.ring_transport = call.file.ring_transport;
  call.options.comm.watchdog_s = flags.watchdog_s;
  return call;
}

}  // namespace usp::cli
