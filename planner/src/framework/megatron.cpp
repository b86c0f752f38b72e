// SPDX-License-Identifier: Apache-2.0
#include "records.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp {
namespace {

/// Stage 1 is the distributed optimizer; 2 and 3 are Megatron-FSDP.
void write_states(const ExportInput& input, ExportedPlan& result) {
  const int stage = input.plan.zero_stage;
  if (stage >= 1) set(result, "--use-distributed-optimizer");
  if (stage < 2) return;
  set(result, "--use-megatron-fsdp");
  set(result, "--data-parallel-sharding-strategy", stage == 2 ? "optim_grads" : "optim_grads_params");
}

/// Layers of the slowest stage stay as many: the first and the last stage hold fewer than those between.
void write_uneven_stages(i64 layers, i64 stages, ExportedPlan& result) {
  const std::optional<EndStages> ends = stages_with_fewer_at_ends(layers, stages);
  if (!ends)
    throw Infeasible(fmt::format("Megatron-LM has no pipeline of {} for {}", counted(stages, "stage"),
                                 counted(layers, "layer")),
                     {"plan --framework megatron, which keeps to pipelines that it has"});
  set(result, "--decoder-first-pipeline-num-layers", ends->first);
  set(result, "--decoder-last-pipeline-num-layers", ends->last);
  differs(
      result,
      fmt::format("{} layers over {} stages, the first {} with one more", layers, stages, layers % stages),
      fmt::format("{} on the first, {} on the last, {} on each between", ends->first, ends->last,
                  ends->between));
}

void write_stages(const ExportInput& input, ExportedPlan& result) {
  const i64 stages = input.plan.pipeline, chunks = input.step().virtual_stages, layers = input.model_layers();
  set(result, "--pipeline-model-parallel-size", stages);
  if (stages == 1) return;
  if (chunks > 1) set(result, "--num-virtual-stages-per-pipeline-rank", chunks);
  if (layers == 0)
    differs(result, "stages of a model whose plan file lists attention layers alone",
            fmt::format("all its layers must be a multiple of {}", stages * chunks));
  if (layers % (stages * chunks) == 0) return;
  if (chunks > 1)
    throw Infeasible(fmt::format("Megatron-LM interleaves chunks of equally many layers: {} layers are no "
                                 "multiple of {} stages x {} chunks",
                                 layers, stages, chunks),
                     {"plan --framework megatron, which keeps to such pipelines"});
  write_uneven_stages(layers, stages, result);
}

/// bf16 gradients are held and reduced in fp32 unless it is told otherwise, fp16 ones in fp16.
void write_gradients(const ExportInput& input, ExportedPlan& result) {
  if (!input.plan.training || !input.plan.inputs.step) return;
  const StepWorkload step = input.step();
  if (step.dtype == Precision::bf16 && !step.fp32_gradients) set(result, "--grad-reduce-in-bf16");
  if (step.fp32_gradients && step.dtype != Precision::fp32)
    set(result, "--accumulate-allreduce-grads-in-fp32");
}

/// Full recomputation of whole layers: of all, or of the first layers of each chunk of each stage.
void write_full(const ExportInput& input, ExportedPlan& result) {
  const StepWorkload step = input.step();
  set(result, "--recompute-granularity", "full");
  set(result, "--recompute-method", step.recompute_layers ? "block" : "uniform");
  if (!step.recompute_layers) return set(result, "--recompute-num-layers", 1);
  const i64 chunks = i64{input.plan.pipeline} * step.virtual_stages;
  const i64 each = (*step.recompute_layers + chunks - 1) / chunks;
  set(result, "--recompute-num-layers", each);
  if (each * chunks != *step.recompute_layers)
    differs(result, fmt::format("{} layers recompute", *step.recompute_layers),
            fmt::format("{} in each of {} parts of the model", each, chunks));
}

/// All that is kept, of the first layers, where nothing is computed again and there is no pipeline.
void write_cpu_offloading(const ExportInput& input, ExportedPlan& result) {
  const StepWorkload step = input.step();
  if (!step.offload.any()) return;
  const i64 all = input.model_layers(), layers = step.offload_layers.value_or(all);
  if (step.offload != Offload::everything() || input.plan.recompute != Recompute::none ||
      input.plan.pipeline > 1 || all < 2)
    return add_kinds_offload_difference(input, result);
  set(result, "--cpu-offloading");
  set(result, "--cpu-offloading-num-layers", std::min(layers, all - 1));
  if (layers == all)
    differs(result, "all layers wait in host memory",
            "--cpu-offloading-num-layers takes all but the last one");
}

void write_recompute(const ExportInput& input, ExportedPlan& result) {
  if (!input.plan.training) return;
  write_cpu_offloading(input, result);
  const Recompute recompute = input.plan.recompute;
  if (recompute != Recompute::full && recompute != Recompute::offload)
    add_some_layers_difference(input, result);
  switch (recompute) {
    case Recompute::none:
      return;
    case Recompute::selective:  // core attention, which is Megatron's default module
      set(result, "--recompute-granularity", "selective");
      return;
    case Recompute::keep_attention:
      differs(result, "recompute keep_attention: projections run again too",
              "they are kept: layernorm and mlp run again");
      [[fallthrough]];
    case Recompute::mlp:
      set(result, "--recompute-granularity", "selective");
      set(result, "--recompute-modules", "layernorm mlp");
      return;
    case Recompute::full:
    case Recompute::offload:
      write_full(input, result);
  }
  add_offload_difference(input, result, "--recompute-granularity full keeps them on the device");
}

/// The data loader cuts a sequence by all context-parallel ranks, a plan by its ring.
void add_token_map(const ExportInput& input, ExportedPlan& result) {
  if (input.chosen.ulysses == 1) return;
  const int ranks = input.sequence_ranks(), ring = input.chosen.ring;
  result.notes.push_back(fmt::format(
      "token map: Megatron cuts a sequence into 2 x {} chunks and gives rank i chunks i and {} - i; {}",
      ranks, 2 * ranks - 1,
      ring == 1
          ? "a plan gives rank i the i-th part; attention sees the same"
          : fmt::format(
                "a plan cuts it into 2 x {} chunks over the ring and each part over Ulysses: ranks of a "
                "ring row hold the same tokens together, single ranks others",
                ring)));
}

void write(const ExportInput& input, ExportedPlan& result) {
  const PlanFile& plan = input.plan;
  const StepWorkload step = input.step();
  const int ranks = input.sequence_ranks();
  set(result, "--tensor-model-parallel-size", input.tensor());
  if (input.tensor() > 1 && step.sequence_parallel) set(result, "--sequence-parallel");
  write_stages(input, result);
  set(result, "--context-parallel-size", ranks);
  if (const ExchangeMode* mode = input.chosen.mode) {
    set(result, "--cp-comm-type", std::string(mode->word));
    if (mode->both)
      set(result, "--hierarchical-context-parallel-sizes",
          fmt::format("{} {}", input.chosen.ulysses, input.chosen.ring));
  }
  if (step.expert > 1) set(result, "--expert-model-parallel-size", step.expert);
  if (step.expert > 1 && step.expert_overlap) set(result, "--overlap-moe-expert-parallel-comm");
  if (!step.expert_tensor && input.tensor() > 1) set(result, "--expert-tensor-parallel-size", 1);
  set(result, "--seq-length", plan.capacity_tokens);
  set(result, "--max-position-embeddings", plan.capacity_tokens);
  set(result, "--micro-batch-size", input.rows_per_microbatch());
  set(result, "--global-batch-size", step.batch * input.data());
  if (step.dtype != Precision::fp32) set(result, "--" + std::string(word_of(step.dtype)));
  write_gradients(input, result);
  write_recompute(input, result);
  if (plan.training) write_states(input, result);
  if (plan.training && step.expert > 1 && input.tensor() > 1 && !step.sequence_parallel)
    result.notes.emplace_back(
        "Megatron trains experts beside tensor parallelism with --sequence-parallel only");
  if (plan.zero_stage < 2 && (ranks > 1 || input.tensor() > 1))
    result.environment.push_back({"CUDA_DEVICE_MAX_CONNECTIONS", "1",
                                  "required with tensor or context parallelism on cards before Blackwell"});
  if (plan.zero_stage >= 2)
    result.notes.emplace_back(
        "Megatron-FSDP wants CUDA_DEVICE_MAX_CONNECTIONS unset, tensor and context parallelism want 1 before "
        "Blackwell: Megatron warns, and runs");
  add_token_map(input, result);
  add_tile_differences(input, result, "--cross-entropy-loss-fusion does not tile the logits", "no tiled MLP");
  if (input.tensor() > 1 && step.sequence_parallel)
    result.notes.emplace_back("--sequence-parallel shards norms and saved activations over tensor ranks");
}

ExchangeMode mode_of(std::string_view word, Method method, bool ring, bool ulysses) {
  ExchangeMode mode;
  mode.word = word;
  mode.method = method;
  mode.ring = ring;
  mode.ulysses = ulysses;
  mode.both = ring && ulysses;
  mode.order = AxisOrder::ulysses_inner;  // hierarchical groups are the a2a ones first
  return mode;
}

std::vector<ExchangeMode> modes() {
  ExchangeMode p2p = mode_of("p2p", Method::ring, true, false);
  p2p.packed = true;  // k and v of a hop are one message
  ExchangeMode gather = mode_of("all_gather", Method::all_gather_kv, true, false);
  gather.overlap = false;
  gather.window = true;
  ExchangeMode a2a = mode_of("a2a", Method::ring, false, true);
  a2a.window = a2a.sinks = true;
  return {p2p, gather, a2a, mode_of("a2a+p2p", Method::ring, true, true)};
}

FrameworkTraits traits() {
  FrameworkTraits t;
  t.word = "megatron";
  t.name = "Megatron-LM with TransformerEngine";
  t.version = "Megatron-LM 0.20.0, TransformerEngine 2.20.0.dev0";
  t.source =
      "NVIDIA/Megatron-LM d98e8a6 megatron/training/arguments.py, megatron/core/parallel_state.py; "
      "NVIDIA/TransformerEngine d0067d0 context_parallel.py";
  t.modes = modes();
  t.equal_stages = t.fewer_at_ends = t.some_layers = t.offloads_layers = true;
  t.sequence_multiple = 2;  // arguments.py: seq-length is a multiple of 2 x context-parallel-size
  t.zero_stages = {0, 1, 2, 3};
  t.recomputes = {Recompute::none, Recompute::selective, Recompute::mlp, Recompute::full};
  t.script = "pretrain_gpt.py";
  t.write = write;
  return t;
}

}  // namespace

const FrameworkTraits megatron_traits = traits();

}  // namespace usp
