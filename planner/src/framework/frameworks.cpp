// SPDX-License-Identifier: Apache-2.0
#include "records.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/plan_attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace usp {
namespace {

std::vector<std::string> words() {
  std::vector<std::string> list;
  for (const FrameworkTraits* framework : frameworks()) list.emplace_back(framework->word);
  return list;
}

std::string unsupported_heads(const ExchangeMode& mode, const LayerNeeds& layer, int ulysses) {
  if (ulysses == 1) return "";
  if (layer.query_heads % ulysses != 0)
    return fmt::format("ulysses {} does not divide the {}", ulysses,
                       counted(layer.query_heads, "query head"));
  const bool divides = layer.kv_heads % ulysses == 0;
  if (mode.repeats_kv && !divides && ulysses % layer.kv_heads != 0)
    return fmt::format("ulysses {} neither divides the {} KV heads nor is a multiple of them", ulysses,
                       layer.kv_heads);
  if (!mode.repeats_kv && !divides)
    return fmt::format("ulysses {} does not divide the {}", ulysses, counted(layer.kv_heads, "KV head"));
  return "";
}

std::string unsupported_layer(const ExchangeMode& mode, const LayerNeeds& layer, int ulysses) {
  if (layer.linear) return "layers of linear attention are not in its record here";
  if (layer.chunked) return "chunked attention is not in its record here";
  if (layer.window && !mode.window) return "it takes no sliding window";
  if (layer.sinks && !mode.sinks) return "it takes no attention sinks";
  return unsupported_heads(mode, layer, ulysses);
}

}  // namespace

const std::vector<const FrameworkTraits*>& frameworks() {
  static const std::vector<const FrameworkTraits*> list = {
      &megatron_traits,   &deepspeed_traits, &accelerate_traits,   &xdit_traits,
      &torchtitan_traits, &yunchang_traits,  &usp_attention_traits};
  return list;
}

std::string framework_words() {
  return join(words(), ", ");
}

const FrameworkTraits& framework_named(const std::string& word, const std::string& flag) {
  for (const FrameworkTraits* framework : frameworks())
    if (framework->word == word) return *framework;
  const std::string near = nearest_name(word, words());
  throw UsageError(fmt::format("{}: '{}' is not one of {}{}", flag, word, framework_words(),
                               near.empty() ? "" : fmt::format("; did you mean '{}'?", near)));
}

FrameworkCase framework_case(const PlanFile& plan) {
  FrameworkCase job;
  job.seq = plan.capacity_tokens;
  job.training = plan.training;
  job.documents = plan.documents.size() > 1;
  job.tensor = plan.placement.tensor;
  job.pipeline = plan.pipeline;
  job.expert = plan.inputs.step ? plan.inputs.step->expert : 1;
  for (const PlanLayer& layer : plan.layers) {
    const AttentionPlan& p = layer.plan;
    job.causal = job.causal && p.band.diff_min == 0;
    const bool whole = p.band.diff_max == unbounded;
    job.layers.push_back(
        {p.shape.query_heads, p.shape.kv_heads, !whole, layer.chunk_tokens > 0, p.sink, false});
  }
  return job;
}

FrameworkCase framework_case(const PlanRequest& request, int tensor) {
  const Workload& w = request.workload;
  FrameworkCase job;
  job.seq = w.seq;
  job.training = w.training;
  job.causal = w.causal;
  job.documents = w.documents.size() > 1;
  job.tensor = tensor;
  job.pipeline = w.pipeline;
  job.expert = w.expert;
  for (const LayerKind& kind : request.model->kinds) {
    if (kind.kind == LayerMixer::none) continue;
    LayerNeeds needs;
    needs.linear = kind.is_linear();
    needs.query_heads = kind.query_heads / tensor;
    needs.kv_heads = std::max<i64>(1, kind.kv_heads / tensor);
    needs.window = kind.kind == LayerMixer::sliding;
    needs.chunked = kind.kind == LayerMixer::chunked;
    needs.sinks = kind.sinks;
    job.layers.push_back(needs);
    if (!needs.linear && (job.kv_heads == 0 || kind.kv_heads < job.kv_heads)) job.kv_heads = kind.kv_heads;
  }
  return job;
}

std::string unsupported_job(const FrameworkTraits& f, const FrameworkCase& job) {
  if (job.training && !f.training) return fmt::format("{} does not train; plan with --forward-only", f.name);
  if (job.causal && !f.causal) return fmt::format("{} takes no causal mask; plan with --full", f.name);
  if (job.tensor > 1 && !f.tensor)
    return fmt::format("{} has no tensor parallelism beside the sequence's; plan with --tensor 1", f.name);
  if (job.pipeline > 1 && !f.pipeline)
    return fmt::format("{} has no pipeline stages; plan with --pipeline 1", f.name);
  if (job.expert > 1 && !f.expert)
    return fmt::format("{} has no expert parallelism in its record here; plan with --expert 1", f.name);
  if (f.tensor_divides_kv && job.kv_heads > 0 && job.kv_heads % job.tensor != 0)
    return fmt::format("{} wants a tensor degree that divides the {}, not {}", f.name,
                       counted(job.kv_heads, "KV head"), job.tensor);
  return "";
}

std::string unsupported_mode(const FrameworkTraits& framework, const ExchangeMode& mode,
                             const FrameworkCase& job, int ring, int ulysses) {
  if (ring > 1 && !mode.ring) return "it has no ring";
  if (ulysses > 1 && !mode.ulysses) return "it does not exchange heads";
  if (mode.both && (ring == 1 || ulysses == 1)) return "it wants both axes above 1";
  if (job.documents && !mode.documents) return "it takes no packed documents";
  if (job.tensor > 1 && !mode.tensor) return "it takes no tensor parallelism beside it";
  for (const LayerNeeds& layer : job.layers)
    if (std::string reason = unsupported_layer(mode, layer, ulysses); !reason.empty()) return reason;
  const i64 ranks = i64{ring} * ulysses;
  const i64 multiple = ranks > 1 ? ranks * framework.sequence_multiple : 1;
  if (job.seq % multiple != 0)
    return fmt::format("{} tokens are no multiple of {} ({} x {} ranks)", job.seq, multiple,
                       framework.sequence_multiple, ranks);
  return "";
}

AttentionPlan mode_plan(const ExchangeMode& mode, const AttentionPlan& base, int ring, int ulysses) {
  AttentionPlan plan = base;
  plan.mesh = {1, ring, ulysses};
  plan.method = mode.method;
  plan.layout = ring > 1 && base.band.diff_min == 0 ? mode.layout : LayoutKind::contiguous;
  plan.dkv_return = ring > 1 ? mode.dkv_return : DkvReturn::circulate;
  plan.head_chunks = 1;
  plan.prune = false;
  if (mode.repeats_kv) plan.shape.kv_heads = std::max(plan.shape.kv_heads, ulysses);
  if (mode.whole_mask) plan.band = {};
  return plan;
}

ExecutionOptions mode_execution(const ExchangeMode& mode) {
  ExecutionOptions options = execution_options(Transport::nccl);
  options.packed = mode.packed;
  options.overlap = mode.overlap;
  return options;
}

void add_tile_differences(const ExportInput& input, ExportedPlan& result, const std::string& loss,
                          const std::string& mlp) {
  if (!input.plan.inputs.step || !input.plan.training) return;
  const MemoryPolicy& memory = input.step().memory;
  if (memory.loss_tile_tokens > 0)
    differs(result,
            fmt::format("loss in tiles of {} (its memory counts on it)",
                        counted(memory.loss_tile_tokens, "token")),
            loss.empty() ? "a fused or chunked cross entropy (Liger's, ALST's TiledFusedLogitsLoss)" : loss);
  if (memory.mlp_tile_tokens > 0)
    differs(result, fmt::format("MLP in tiles of {}", counted(memory.mlp_tile_tokens, "token")),
            mlp.empty() ? "ALST's TiledMLP" : mlp);
}

void add_partial_recompute(const ExportInput& input, ExportedPlan& result) {
  const Recompute recompute = input.plan.recompute;
  if (!input.plan.training || recompute == Recompute::none || layer_again(recompute)) return;
  differs(result, fmt::format("recompute {}: a part of each layer runs again", word_of(recompute)),
          "checkpointing of whole layers or none");
}

void add_offload_difference(const ExportInput& input, ExportedPlan& result, const std::string& instead) {
  if (input.plan.training && input.plan.recompute == Recompute::offload)
    differs(result, "checkpoints in host memory", instead);
}

/// "input, mlp of 20 layers in host memory"; empty: nothing is.
std::string offload_words(const StepWorkload& step) {
  if (!step.offload.any()) return "";
  return fmt::format("{} of {} in host memory", kinds_text(step.offload),
                     step.offload_layers ? counted(*step.offload_layers, "layer") : "all layers");
}

void add_expert_overlap_difference(const ExportInput& input, ExportedPlan& result) {
  if (!input.plan.inputs.step) return;
  const StepWorkload step = input.step();
  if (step.expert > 1 && step.expert_overlap)
    differs(result, "dispatch and combine run beside another microbatch's compute",
            "they wait for each other");
}

namespace {

/// What tensors that no setting moves to host memory take of the device.
std::string stays_text(const ExportInput& input) {
  const PlanFile& plan = input.plan;
  if (plan.host_memory_bytes == 0 || plan.memory_bytes == 0) return "they stay on the device";
  const double needed = static_cast<double>(plan.memory_bytes) + static_cast<double>(plan.host_memory_bytes);
  std::string text =
      fmt::format("they stay on the device, which then needs {} ({} more)", format_bytes(needed),
                  format_bytes(static_cast<double>(plan.host_memory_bytes)));
  std::optional<double> capacity = input.step().memory.device_bytes;
  if (!capacity && input.request.cluster != nullptr)
    capacity = input.request.cluster->specs.front().memory_bytes.value;
  if (!capacity) return text;
  return text + (needed > *capacity
                     ? fmt::format(" and has {}: it does not hold them", format_bytes(*capacity))
                     : fmt::format(" of its {}", format_bytes(*capacity)));
}

}  // namespace

void add_kinds_offload_difference(const ExportInput& input, ExportedPlan& result) {
  if (!input.plan.training || !input.plan.inputs.step) return;
  const std::string words = offload_words(input.step());
  if (!words.empty()) differs(result, words, "no setting moves them: " + stays_text(input));
}

std::optional<EndStages> stages_with_fewer_at_ends(i64 layers, i64 stages) {
  const i64 most = (layers + stages - 1) / stages, missing = most * stages - layers;
  const EndStages ends{most - missing / 2, most - (missing - missing / 2), most};
  if (ends.first < 1 || ends.last < 1) return std::nullopt;
  return ends;
}

i64 model_layers(const PlanFile& plan) {
  if (plan.inputs.step && plan.inputs.step->model_layers) return *plan.inputs.step->model_layers;
  std::set<int> layers;
  for (const PlanLayer& layer : plan.layers) layers.insert(layer.layers.begin(), layer.layers.end());
  const auto count = static_cast<i64>(layers.size());
  return layers.empty() || *layers.rbegin() + 1 == count ? count : 0;
}

double recomputed_share(const PlanFile& plan) {
  const i64 layers = model_layers(plan);
  if (!plan.inputs.step || !plan.inputs.step->recompute_layers || layers == 0) return 1;
  return std::min(1.0,
                  static_cast<double>(*plan.inputs.step->recompute_layers) / static_cast<double>(layers));
}

void add_some_layers_difference(const ExportInput& input, ExportedPlan& result) {
  const std::optional<i64> layers = input.step().recompute_layers;
  if (!layers || !input.plan.training || input.plan.recompute == Recompute::none) return;
  differs(result, fmt::format("recompute {} of {}", word_of(input.plan.recompute), counted(*layers, "layer")),
          "of every layer or of none; the price of attention counts every layer");
}

void add_tensor_differences(const ExportInput& input, ExportedPlan& result, const std::string& tokens,
                            const std::string& experts) {
  if (!input.plan.inputs.step || input.tensor() == 1) return;
  const StepWorkload step = input.step();
  if (!tokens.empty())
    differs(result,
            step.sequence_parallel ? "tensor ranks split norms and residuals by tokens"
                                   : "every tensor rank holds norms and residuals whole",
            tokens);
  if (!step.expert_tensor || step.expert > 1)
    differs(result,
            step.expert_tensor ? "tensor ranks split the width of each expert"
                               : "tensor ranks hold whole experts",
            experts);
}

std::string_view gradient_word(const StepWorkload& step) {
  return word_of(step.fp32_gradients ? Precision::fp32 : step.dtype);
}

void add_gradient_difference(const ExportInput& input, ExportedPlan& result, bool fp32,
                             const std::string& instead) {
  if (!input.plan.inputs.step || !input.plan.training) return;
  const bool plan_fp32 = gradient_word(input.step()) == word_of(Precision::fp32);
  if (plan_fp32 != fp32)
    differs(result, fmt::format("gradients in {}", gradient_word(input.step())), instead);
}

void note_script_settings(const ExportInput& input, ExportedPlan& result) {
  const PlanFile& plan = input.plan;
  if (!plan.inputs.step || !plan.training) return;
  const StepWorkload step = input.step();
  const std::string offload = offload_words(step);
  result.notes.push_back(fmt::format(
      "the training script decides the rest; the plan has recompute {}{}{}, ZeRO-{} and gradients "
      "in {}",
      word_of(plan.recompute),
      step.recompute_layers ? fmt::format(" of {} layers", *step.recompute_layers) : "",
      offload.empty() ? "" : ", " + offload, plan.zero_stage, gradient_word(step)));
}

std::string hosts_word(const ExportInput& input) {
  return input.hosts > 0 ? std::to_string(input.hosts) : "$NNODES";
}

std::string devices_word(const ExportInput& input) {
  return input.devices_per_host > 0 ? std::to_string(input.devices_per_host) : "$GPUS_PER_NODE";
}

std::string torchrun_start(const ExportInput& input, const std::string& node_rank) {
  if (input.hosts == 1) return fmt::format("torchrun --standalone --nproc-per-node {}", devices_word(input));
  return fmt::format(
      "torchrun --nnodes {} --nproc-per-node {} --node-rank {} --master-addr $MASTER_ADDR --master-port "
      "29500",
      hosts_word(input), devices_word(input), node_rank);
}

i64 ExportInput::world() const {
  return i64{plan.placement.data} * plan.placement.tensor * plan.pipeline * plan.mesh.size();
}

i64 ExportInput::model_layers() const {
  return usp::model_layers(plan);
}

StepWorkload ExportInput::step() const {
  if (plan.inputs.step) return *plan.inputs.step;
  StepWorkload step;
  step.batch = plan.layers.front().plan.shape.batch;
  step.dtype = precision_of(plan.layers.front().plan.shape.dtype)
                   .value_or(step.dtype);  // of fp64 no framework with a setting is left
  return step;
}

std::optional<Precision> precision_of(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return Precision::bf16;
    case DType::fp16:
      return Precision::fp16;
    case DType::fp32:
      return Precision::fp32;
    case DType::fp64:
      return std::nullopt;
  }
  throw InternalError("a type of a plan is not known");
}

}  // namespace usp
