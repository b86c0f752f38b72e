// SPDX-License-Identifier: Apache-2.0
#include "records.hpp"

#include <fmt/format.h>

namespace usp {
namespace {

/// The layers of the embedding and the head count for none, so that chunks are as the plan has them.
void write_chunks(const ExportInput& input, ExportedPlan& result) {
  const i64 chunks = input.step().virtual_stages, layers = input.model_layers();
  if (chunks == 1) return;
  const i64 parts = input.plan.pipeline * chunks;
  if (layers == 0 || layers % parts != 0)
    return differs(result, fmt::format("{} chunks of the model per pipeline stage, interleaved", chunks),
                   "parallelism.pipeline_parallel_schedule is 1F1B (the step's price does not count it)");
  set(result, "--parallelism.pipeline_parallel_schedule", "Interleaved1F1B");
  set(result, "--parallelism.pipeline_parallel_layers_per_stage", layers / parts);
  set(result, "--parallelism.pipeline_parallel_first_stage_less_layers", 0);
  set(result, "--parallelism.pipeline_parallel_last_stage_less_layers", 0);
}

void write(const ExportInput& input, ExportedPlan& result) {
  const StepWorkload step = input.step();
  set(result, "--parallelism.data_parallel_replicate_degree", 1);
  set(result, "--parallelism.data_parallel_shard_degree", input.data());
  set(result, "--parallelism.context_parallel_degree", input.sequence_ranks());
  if (input.sequence_ranks() > 1) set(result, "--parallelism.context_parallel_load_balancer", "headtail");
  set(result, "--parallelism.tensor_parallel_degree", input.tensor());
  set(result, "--parallelism.pipeline_parallel_degree", input.plan.pipeline);
  write_chunks(input, result);
  if (step.expert > 1) set(result, "--parallelism.expert_parallel_degree", step.expert);
  set(result, "--parallelism.fsdp_reshard_after_forward", input.plan.zero_stage == 3 ? "always" : "never");
  set(result, "--training.seq_len", input.plan.capacity_tokens);
  set(result, "--training.local_batch_size", input.rows_per_microbatch());
  set(result, "--training.global_batch_size", step.batch * input.data());
  if (step.dtype == Precision::fp32) set(result, "--training.mixed_precision_param", "float32");
  if (step.dtype == Precision::fp16)
    differs(result, "computes in fp16",
            "training.mixed_precision_param is bfloat16 unless the configuration says float32");
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
  add_some_layers_difference(input, result);
  add_kinds_offload_difference(input, result);
  add_expert_overlap_difference(input, result);
  add_tensor_differences(input, result,
                         step.sequence_parallel ? ""
                                                : "parallelism.enable_sequence_parallel is true unless "
                                                  "the configuration says otherwise",
                         "no setting in its record here");
  add_gradient_difference(input, result, true, "training.mixed_precision_reduce is float32");
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
