// SPDX-License-Identifier: Apache-2.0
#include "records.hpp"

#include <fmt/format.h>

namespace usp {
namespace {

std::string config_text(const ExportInput& input) {
  const StepWorkload step = input.step();
  std::string text = "{\n";
  text += fmt::format("  \"train_micro_batch_size_per_gpu\": {},\n", input.rows_per_microbatch());
  text += fmt::format("  \"gradient_accumulation_steps\": {},\n", step.microbatches);
  text += fmt::format("  \"sequence_parallel_size\": {},\n", input.sequence_ranks());
  if (step.dtype != Precision::fp32)
    text += fmt::format("  \"{}\": {{\"enabled\": true}},\n", word_of(step.dtype));
  if (input.plan.training && input.plan.inputs.step)
    text += fmt::format("  \"data_types\": {{\"grad_accum_dtype\": \"{}\"}},\n", gradient_word(step));
  return text + fmt::format("  \"zero_optimization\": {{\"stage\": {}}}\n}}\n", input.plan.zero_stage);
}

std::string code_text(const ExportInput& input) {
  return fmt::format(
      "mpu = UlyssesSPAttentionHF.register_with_transformers(\n"
      "    model_name_or_path=model_name,\n"
      "    core_attn_implementation=\"flash_attention_2\",\n"
      "    sequence_parallel_size={}, micro_batch_size={},\n"
      "    seq_length={}, seq_length_is_variable=False)\n"
      "engine, *_ = deepspeed.initialize(\n"
      "    config=\"ds_config.json\", model=model,\n"
      "    model_parameters=model.parameters(), mpu=mpu)\n"
      "loader = UlyssesSPDataLoaderAdapter(\n"
      "    loader, sp_rank=groups._get_sequence_parallel_rank(),\n"
      "    sp_group=groups._get_sequence_parallel_group(),\n"
      "    sp_world_size={}, device=engine.device)\n",
      input.sequence_ranks(), input.rows_per_microbatch(), input.plan.capacity_tokens,
      input.sequence_ranks());
}

void write(const ExportInput& input, ExportedPlan& result) {
  result.texts.push_back({"ds_config.json", config_text(input)});
  if (input.sequence_ranks() > 1)
    result.texts.push_back(
        {"in the training script (deepspeed.runtime.sequence_parallel.ulysses_sp)", code_text(input)});
  if (input.plan.recompute == Recompute::full || input.plan.recompute == Recompute::offload)
    result.notes.emplace_back("full recomputation: model.gradient_checkpointing_enable()");
  add_partial_recompute(input, result);
  add_some_layers_difference(input, result);
  add_kinds_offload_difference(input, result);
  add_expert_overlap_difference(input, result);
  add_offload_difference(
      input, result, "deepspeed.runtime.activation_checkpointing.offload_activations moves them to the host");
  add_tile_differences(input, result, "", "");
  if (input.plan.capacity_tokens > 0 && input.sequence_ranks() > 1)
    result.notes.emplace_back(
        "batches carry position_ids; labels arrive as shift_labels, and the loss is averaged by valid tokens "
        "of all ranks");
}

FrameworkTraits traits() {
  FrameworkTraits t;
  t.word = "deepspeed";
  t.name = "DeepSpeed Ulysses (ALST)";
  t.version = "DeepSpeed 0.19.6";
  t.source =
      "deepspeedai/DeepSpeed edaa722 deepspeed/runtime/sequence_parallel/ulysses_sp.py, "
      "parallel_state_sp.py, "
      "runtime/config.py";
  ExchangeMode ulysses;
  ulysses.word = "ulysses";
  ulysses.ulysses = ulysses.repeats_kv = ulysses.window = true;
  t.modes = {ulysses};
  t.tensor = t.pipeline = t.expert = false;  // sequence groups are runs of world ranks
  t.zero_stages = {0, 1, 2, 3};
  t.recomputes = {Recompute::none, Recompute::full, Recompute::offload};
  t.script = "train.py";
  t.write = write;
  return t;
}

}  // namespace

const FrameworkTraits deepspeed_traits = traits();

}  // namespace usp
