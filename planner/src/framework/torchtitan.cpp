// SPDX-License-Identifier: Apache-2.0
#include "records.hpp"

#include <fmt/format.h>

namespace usp {
namespace {

void write(const ExportInput& input, ExportedPlan& result) {
  const StepWorkload step = input.step();
  set(result, "--parallelism.data_parallel_replicate_degree", 1);
  set(result, "--parallelism.data_parallel_shard_degree", input.data());
  set(result, "--parallelism.context_parallel_degree", input.sequence_ranks());
  if (input.sequence_ranks() > 1) set(result, "--parallelism.context_parallel_load_balancer", "headtail");
  set(result, "--parallelism.tensor_parallel_degree", input.tensor());
  set(result, "--parallelism.pipeline_parallel_degree", input.plan.pipeline);
  if (step.expert > 1) set(result, "--parallelism.expert_parallel_degree", step.expert);
  set(result, "--parallelism.fsdp_reshard_after_forward", input.plan.zero_stage == 3 ? "always" : "never");
  set(result, "--training.seq_len", input.plan.capacity_tokens);
  set(result, "--training.local_batch_size", input.rows_per_microbatch());
  set(result, "--training.global_batch_size", step.batch * input.data());
  if (input.plan.zero_stage < 2)
    differs(result, fmt::format("ZeRO-{}", input.plan.zero_stage),
            "FSDP2 shards gradients and optimizer states too, as ZeRO-2");
  if (input.plan.training)
    result.notes.push_back(fmt::format(
        "activation checkpointing is part of the model's configuration (--config): {} is nearest to "
        "recompute {} of the plan",
        input.plan.recompute == Recompute::none ? "none"
        : layer_again(input.plan.recompute)     ? "FullAC"
                                                : "SelectiveAC",
        word_of(input.plan.recompute)));
  add_offload_difference(input, result, "checkpoints stay on the device");
  add_tile_differences(input, result, "", "no tiled MLP");
}

std::string start(const ExportInput& input, const std::string& node_rank) {
  return torchrun_start(input, node_rank) + " -m torchtitan.train --module $MODULE --config $CONFIG";
}

FrameworkTraits traits() {
  FrameworkTraits t;
  t.word = "torchtitan";
  t.name = "torchtitan";
  t.version = "torchtitan 0.3.0";
  t.source =
      "PyPI torchtitan 0.3.0 config/configs.py, distributed/parallel_dims.py, distributed/context_parallel";
  ExchangeMode gather;  // flex_cp_allgather, and torch's default rotation for sdpa
  gather.word = "allgather";
  gather.ring = true;
  gather.method = Method::all_gather_kv;
  gather.overlap = false;
  gather.window = true;
  t.modes = {gather};
  t.tensor_divides_kv = true;
  t.sequence_multiple = 2;
  t.zero_stages = {2, 3};
  t.recomputes = {Recompute::none, Recompute::keep_attention, Recompute::full};
  t.write = write;
  t.start = start;
  return t;
}

}  // namespace

const FrameworkTraits torchtitan_traits = traits();

}  // namespace usp
