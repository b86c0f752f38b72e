// SPDX-License-Identifier: Apache-2.0
#include "records.hpp"

#include <fmt/format.h>

namespace usp {
namespace {

constexpr std::string_view ulysses_word = "deepspeed";

bool by_deepspeed(const ExportInput& input) {
  return input.chosen.mode != nullptr && input.chosen.mode->word == ulysses_word;
}

std::string code_text(const ExportInput& input) {
  const int ranks = input.sequence_ranks();
  std::string text = "from accelerate import Accelerator\nfrom accelerate.utils import ParallelismConfig";
  std::string sequence;
  if (by_deepspeed(input)) {
    text += "\nfrom accelerate.utils import DeepSpeedSequenceParallelConfig";
    sequence = fmt::format(
        "    sp_size={}, sp_backend=\"deepspeed\",\n"
        "    sp_handler=DeepSpeedSequenceParallelConfig(\n"
        "        sp_seq_length={}, sp_seq_length_is_variable=False,\n"
        "        sp_attn_implementation=\"flash_attention_2\"),\n",
        ranks, input.plan.capacity_tokens);
  } else if (ranks > 1) {
    text += "\nfrom accelerate.utils import TorchContextParallelConfig";
    sequence = fmt::format(
        "    cp_size={}, cp_backend=\"torch\",\n"
        "    cp_handler=TorchContextParallelConfig(cp_comm_strategy=\"{}\"),\n",
        ranks, input.chosen.mode->word);
  }
  const std::string tensor = input.tensor() > 1 ? fmt::format(", tp_size={}", input.tensor()) : "";
  return fmt::format(
      "{}\n\nparallelism = ParallelismConfig(\n    dp_replicate_size=1, dp_shard_size={}{},\n{})\n"
      "accelerator = Accelerator(\n    parallelism_config=parallelism, gradient_accumulation_steps={})\n",
      text, input.data(), tensor, sequence, input.step().microbatches);
}

void write_fsdp(const ExportInput& input, ExportedPlan& result) {
  set(result, "--use_fsdp");
  set(result, "--fsdp_version", 2);
  set(result, "--fsdp_reshard_after_forward", input.plan.zero_stage == 3 ? "true" : "false");
  if (input.plan.recompute == Recompute::full || input.plan.recompute == Recompute::offload)
    set(result, "--fsdp_activation_checkpointing", "true");
  set(result, "--use_parallelism_config");
  add_gradient_difference(input, result, true,
                          "FSDP2 holds them in the type of the sharded parameters, fp32");
  set(result, "--parallelism_config_dp_replicate_size", 1);
  set(result, "--parallelism_config_dp_shard_size", input.data());
  set(result, "--parallelism_config_tp_size", input.tensor());
  set(result, "--parallelism_config_cp_size", input.sequence_ranks());
  if (input.sequence_ranks() == 1) return;
  set(result, "--parallelism_config_cp_backend", "torch");
  set(result, "--parallelism_config_cp_comm_strategy", std::string(input.chosen.mode->word));
}

void write(const ExportInput& input, ExportedPlan& result) {
  if (by_deepspeed(input)) {
    set(result, "--use_deepspeed");
    set(result, "--zero_stage", input.plan.zero_stage);
    result.notes.emplace_back("accelerate leaves sequence groups to DeepSpeed: runs of world ranks");
    if (input.plan.training && input.plan.inputs.step)
      differs(
          result, fmt::format("gradients in {}", gradient_word(input.step())),
          "DeepSpeed's default, unless a file of --deepspeed_config_file has data_types.grad_accum_dtype");
  } else {
    write_fsdp(input, result);
    if (input.sequence_ranks() > 1)
      result.notes.emplace_back(
          "torch context parallelism takes sdpa with a causal mask or none; labels are shifted before they "
          "are cut");
    if (input.plan.training && input.sequence_ranks() > 1 && input.chosen.mode->method != Method::ring)
      result.notes.emplace_back(
          "priced with dK and dV that go straight home; torch rotates them around the ring in either "
          "strategy");
    if (input.plan.zero_stage < 2)
      differs(result, fmt::format("ZeRO-{}", input.plan.zero_stage),
              "FSDP2 shards gradients and optimizer states, as ZeRO-2");
  }
  const Precision dtype = input.step().dtype;
  set(result, "--mixed_precision", dtype == Precision::fp32 ? "no" : std::string(word_of(dtype)));
  result.texts.push_back({"in the training script", code_text(input)});
  add_partial_recompute(input, result);
  add_some_layers_difference(input, result);
  add_kinds_offload_difference(input, result);
  add_expert_overlap_difference(input, result);
  add_tensor_differences(input, result, "the model's tp_plan in transformers decides", "its tp_plan decides");
  add_offload_difference(input, result, "--fsdp_activation_checkpointing_offload true");
  add_tile_differences(input, result, "", "");
}

std::string start(const ExportInput& input, const std::string& node_rank) {
  const std::string processes = input.hosts > 0 ? std::to_string(input.world())
                                                : fmt::format("$(({} * {}))", "NNODES", "GPUS_PER_NODE");
  if (input.hosts == 1)
    return fmt::format("accelerate launch --num_machines 1 --num_processes {}", processes);
  return fmt::format(
      "accelerate launch --num_machines {} --num_processes {} --machine_rank {} "
      "--main_process_ip $MASTER_ADDR --main_process_port 29500",
      hosts_word(input), processes, node_rank);
}

FrameworkTraits traits() {
  FrameworkTraits t;
  t.word = "accelerate";
  t.name = "Hugging Face accelerate and transformers";
  t.version = "accelerate 1.15.0, transformers 5.24.0";
  t.source =
      "PyPI accelerate 1.15.0 parallelism_config.py, commands/launch.py, utils/dataclasses.py; "
      "docs/source/concept_guides/context_parallelism.md; "
      "torch/distributed/tensor/experimental/_context_parallel";
  ExchangeMode gather;  // arrives beside attention to the own block
  gather.word = "allgather";
  gather.ring = true;
  gather.method = Method::all_gather_kv;
  gather.documents = false;
  ExchangeMode rotate;  // a hop of the ring is an all-to-all
  rotate.word = "alltoall";
  rotate.ring = rotate.packed = true;
  rotate.dkv_return = DkvReturn::cycle;  // as many exchanges of gradients as ranks, whatever carries k and v
  rotate.documents = false;
  ExchangeMode ulysses;
  ulysses.word = ulysses_word;
  ulysses.ulysses = ulysses.repeats_kv = ulysses.window = true;
  ulysses.tensor = false;
  t.modes = {gather, rotate, ulysses};
  t.pipeline = t.expert = false;
  t.sequence_multiple = 2;
  t.zero_stages = {2, 3};
  t.recomputes = {Recompute::none, Recompute::full, Recompute::offload};
  t.script = "train.py";
  t.write = write;
  t.start = start;
  t.launcher_arguments = true;
  return t;
}

}  // namespace

const FrameworkTraits accelerate_traits = traits();

}  // namespace usp
