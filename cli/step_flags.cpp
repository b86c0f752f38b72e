// SPDX-License-Identifier: Apache-2.0
#include "step_flags.hpp"

#include "flag_effects.hpp"

#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/request_fault.hpp"
#include "usp/schedule/limits.hpp"

#include <fmt/format.h>

#include <vector>

namespace usp::cli {
namespace {

constexpr i64 most_layers = 65536;

/// "input,attention", "none".
Offload parse_offload(const std::string& text, const std::string& flag) {
  Offload offload;
  if (text == "none") return offload;
  for (const std::string& word : split(text, ',')) offload = offload.with(parse_word<Kept>(trim(word), flag));
  return offload;
}

void add_step_group(const Verb& verb, StepFlags& flags) {
  constexpr const char* name = "Step";
  add_workload_flags(verb, flags.workload,
                     {name, "tokens of one sequence, e.g. 128k or 1M", "sequences of one replica in one step",
                      "", "96k,32k", "no backward pass, no optimizer"});
  FlagGroup group(verb, name);
  group
      .option("--document-lengths", flags.draw.document_lengths,
              "file with one length per line; documents are drawn from it until --seq is full")
      ->type_name(input_file);
  group.number("--seed", flags.draw.seed, "of that draw (0)", 0);
  Constraints& fixed = flags.search.mesh.fixed;
  group.word("--recompute", fixed.recompute, word_choice<Recompute>() + "; default: the fastest");
  group.parsed("--zero", fixed.zero_stage,
               "ZeRO stage 0 to 3 over data x sequence ranks; default: the fastest", parse_zero_stage);
  group.word("--optimizer", flags.optimizer,
             word_choice<Optimizer>() + " (" + std::string(word_of(Workload{}.optimizer)) + ")");
  group.number("--recompute-layers", flags.recompute_layers,
               "layers that compute again, the others keep everything; default: the fewest that fit", 1,
               most_layers);
  group.parsed("--offload", fixed.offload,
               "kinds of kept tensors that wait in host memory: " + joined_words<Kept>() +
                   ", joined by commas, or none; default: the fastest",
               parse_offload);
  group.number("--offload-layers", flags.offload_layers,
               "layers whose tensors do so; default: the fewest that fit, all of --offload", 1, most_layers);
  group.word("--gradients", flags.gradients,
             "type of gradients and of their sums: " + word_choice<Precision>() + " (that of --dtype)");
  group.option("--global-batch", flags.global_batch,
               "of all replicas: sequences, or tokens with a unit (4M); replicas and microbatches follow");
  group.word("--objective", flags.objective,
             word_choice<Objective>() + " of the batch; default: throughput, latency of --forward-only");
  group.number("--microbatches", flags.microbatches, "parts of the batch run one after another (1)", 1,
               max_batch);
  group.option("--pipeline", flags.pipeline, "pipeline stages (1), or auto: searched, with virtual stages");
  group.number("--virtual-stages", flags.virtual_stages,
               "model chunks per pipeline rank: interleaved 1F1B (1)", 1, static_cast<int>(most_layers));
  group.number("--expert", flags.expert, "expert-parallel ranks; default: the fastest", 1, max_ranks);
  group.number("--expert-load", flags.expert_load, "tokens of the busiest expert rank over the mean (1)", 1.0,
               1e6);
  group.flag("--whole-experts", flags.whole_experts,
             "tensor ranks hold whole experts instead of parts of each; expert groups span them");
  group.flag("--overlap-experts", flags.overlap_experts,
             "dispatch and combine run beside another microbatch's compute");
  group.flag("--latent-kv", flags.latent_kv,
             "rings of latent attention ship the latent: priced, but the runtime cannot execute it");
  group.flag("--no-sequence-parallel", flags.no_sequence_parallel,
             "every tensor rank holds norms, residuals and layer inputs whole");
}

void add_rate_group(const Verb& verb, StepFlags& flags) {
  FlagGroup group(verb, "Execution");
  group.number("--gemm-efficiency", flags.gemm_efficiency,
               "share of the peak of every matrix product that its bytes allow; default: by shape and card",
               0.01, 1.0);
  group.number("--power-limit", flags.power_w, "watts of a device instead of its data sheet's", 1.0, 1e5);
}

/// 0: all tokens at once.
i64 parse_tile(const std::string& text, const std::string& flag) {
  return text == "0" ? 0 : parse_tokens(text, flag, max_tokens);
}

double parse_device_bytes(const std::string& text, const std::string& flag) {
  const auto bytes = static_cast<double>(parse_bytes(text, flag));
  if (bytes <= 0) throw UsageError(flag + ": without memory there is no plan");
  return bytes;
}

void add_memory_group(const Verb& verb, MemoryPolicy& memory) {
  FlagGroup group(verb, "Memory");
  group.parsed("--memory", memory.device_bytes, "memory of a device instead of the card's, e.g. 80GiB",
               parse_device_bytes);
  group.parsed("--host-memory", memory.host_bytes, "memory of a host instead of the cluster's, e.g. 2TB",
               parse_device_bytes);
  group.number("--reserve", memory.reserve_fraction,
               "allocator fragmentation, as a share of all other rows (0.08)", 0.0, 1.0);
  group.parsed("--loss-tile", memory.loss_tile_tokens, "tokens whose logits exist at once; 0: all (2048)",
               parse_tile);
  group.parsed("--mlp-tile", memory.mlp_tile_tokens, "tokens whose MLP activations exist at once; 0: all (0)",
               parse_tile);
}

/// Lengths for a row of `seq` tokens; empty: one document. Throws UsageError for a seed of no draw.
std::vector<i64> documents_of(const StepFlags& flags) {
  const DrawFlags& draw = flags.draw;
  const std::string& file = draw.document_lengths;
  if (!flags.workload.documents.empty() && !file.empty())
    throw UsageError("--documents and --document-lengths exclude each other; give one");
  if (draw.seed && file.empty())
    throw UsageError("--seed draws documents from --document-lengths; give that file, or leave --seed out");
  if (file.empty()) return flags.workload.documents;
  return draw_documents(read_document_lengths(read_file(file), file), flags.workload.seq,
                        draw.seed.value_or(0));
}

i64 parse_within(const std::string& text, const char* flag, i64 most) {
  const i64 value = parse_integer(text, flag);
  if (value < 1 || value > most)
    throw UsageError(fmt::format("{}: '{}' is out of range; 1 to {}", flag, text, most));
  return value;
}

/// Digits alone are sequences; a unit makes tokens of them.
std::optional<i64> global_rows(const StepFlags& flags) {
  if (!flags.global_batch) return std::nullopt;
  const std::string& text = *flags.global_batch;
  if (text.find_first_not_of("0123456789") == std::string::npos)
    return parse_within(text, "--global-batch", max_batch);
  const i64 tokens = parse_tokens(text, "--global-batch", max_step_tokens);
  if (tokens % flags.workload.seq != 0)
    throw UsageError(fmt::format("--global-batch: {} tokens are no whole number of sequences of {}", tokens,
                                 flags.workload.seq));
  return tokens / flags.workload.seq;
}

void check_split(const StepFlags& flags) {
  const Constraints& fixed = flags.search.mesh.fixed;
  if (flags.global_batch && flags.workload.batch != 1)
    throw UsageError(
        "--batch counts one replica's sequences and --global-batch all of them; give one of the two");
  if (flags.virtual_stages > 1 &&
      (flags.pipeline.empty() || flags.pipeline == "1" || flags.pipeline == "auto"))
    throw UsageError("--virtual-stages splits the layers of pipeline ranks; give --pipeline with a number");
  if (flags.virtual_stages > 1 && !flags.global_batch &&
      flags.microbatches.value_or(1) % std::stoll(flags.pipeline) != 0)
    throw UsageError(
        fmt::format("--virtual-stages: the interleaved schedule runs microbatches in rounds of as many as "
                    "there are stages; "
                    "give --microbatches a multiple of {}, or --global-batch",
                    flags.pipeline));
  if (flags.recompute_layers && (!fixed.recompute || *fixed.recompute == Recompute::none))
    throw UsageError("--recompute-layers: say with --recompute what these layers compute again");
  if (flags.offload_layers && !(fixed.offload && fixed.offload->any()) &&
      fixed.recompute != Recompute::offload)
    throw UsageError("--offload-layers: say with --offload which tensors of these layers go to host memory");
  if (flags.gradients && *flags.gradients != flags.workload.dtype && *flags.gradients != Precision::fp32)
    throw UsageError("--gradients: fp32, or the type of --dtype");
  refuse_without_backward(flags.workload.forward_only,
                          {{"--gradients", flags.gradients.has_value()},
                           {"--recompute-layers", flags.recompute_layers.has_value()},
                           {"--offload", fixed.offload.has_value()},
                           {"--offload-layers", flags.offload_layers.has_value()}});
}

Workload workload_of(const StepFlags& flags) {
  const Constraints& fixed = flags.search.mesh.fixed;
  flags.workload.check_mask();
  refuse_without_backward(flags.workload.forward_only,
                          {{"--recompute", fixed.recompute.has_value()},
                           {"--optimizer", flags.optimizer.has_value()},
                           // Stage 3 shards parameters too, and stage 0 decides against that.
                           {"--zero 1", fixed.zero_stage == 1},
                           {"--zero 2", fixed.zero_stage == 2}});
  Workload workload;
  workload.seq = flags.workload.seq;
  workload.batch = flags.workload.batch;
  workload.dtype = flags.workload.dtype;
  workload.causal = !flags.workload.full;
  workload.documents = documents_of(flags);
  workload.training = !flags.workload.forward_only;
  workload.optimizer = flags.optimizer.value_or(workload.optimizer);
  workload.microbatches = flags.microbatches.value_or(1);
  // A replica's share of the global batch follows per candidate: here, what the microbatches need at least.
  if (flags.global_batch) workload.batch = workload.microbatches;
  if (!flags.pipeline.empty() && flags.pipeline != "auto")
    workload.pipeline = static_cast<int>(parse_within(flags.pipeline, "--pipeline", max_ranks));
  workload.virtual_stages = flags.virtual_stages;
  workload.expert = flags.expert.value_or(1);
  workload.sequence_parallel = !flags.no_sequence_parallel;
  workload.expert_tensor = !flags.whole_experts;
  workload.expert_load = flags.expert_load.value_or(workload.expert_load);
  workload.recompute_layers = flags.recompute_layers;
  workload.offload = fixed.offload.value_or(workload.offload);
  workload.offload_layers = flags.offload_layers;
  workload.fp32_gradients = flags.gradients == Precision::fp32;
  workload.recompute = fixed.recompute.value_or(workload.recompute);
  workload.zero_stage = fixed.zero_stage.value_or(workload.zero_stage);
  check_workload(workload);
  return workload;
}

void check_memory(const MemoryPolicy& memory) {
  if (!(memory.reserve_fraction >= 0 && memory.reserve_fraction < 1))
    throw UsageError("--reserve: a share of the other rows is needed, 0 or more and less than 1");
}

}  // namespace

void add_search_flags(const Verb& verb, SearchFlags& flags) {
  constexpr const char* name = "Execution";
  add_execution_flags(verb, flags.execution, name);
  add_calibration_flag(verb, flags.cluster, name, "of the card");
  FlagGroup(verb, name).number("--top", flags.top, "candidates to keep (32)", 1, 100000);
}

void add_model_keys(const Verb& verb, std::vector<std::string>& keys) {
  FlagGroup(verb, plain_group)
      .option("--model-key", keys, "set a key of the model's config first; null takes it away; repeatable")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
}

void add_step_flags(const Verb& verb, StepFlags& flags) {
  FlagGroup(verb, plain_group)
      .option("MODEL,--model", flags.model, "Hugging Face config.json, '-' for stdin, or a preset's name")
      ->type_name(input_file);
  add_model_keys(verb, flags.model_keys);
  // A verb below this one may have its own cluster.
  add_cluster_flags(verb, flags.search.cluster, "--cluster")->required(false);
  add_step_group(verb, flags);
  add_constraint_flags(verb, flags.search.mesh);
  add_memory_group(verb, flags.memory);
  add_rate_group(verb, flags);
  add_search_flags(verb, flags.search);
}

std::unique_ptr<StepInput> load_step(const StepFlags& flags, const Invocation& invocation,
                                     SweptDegrees swept) {
  if (flags.model.empty())
    throw UsageError("no model is named; give a config.json or a preset such as llama-3.1-8b");
  if (flags.workload.seq == 0) throw UsageError("--seq is missing: tokens of one sequence, e.g. --seq 1M");
  auto input = std::make_unique<StepInput>();
  PlanRequest& request = input->request;
  check_split(flags);
  request.workload = workload_of(flags);
  request.global_batch = global_rows(flags);
  request.objective = flags.objective;
  request.search_expert = !flags.expert;
  request.search_pipeline = flags.pipeline == "auto";
  request.expert_overlap = flags.overlap_experts;
  request.latent_kv = flags.latent_kv;
  request.gemm_efficiency = flags.gemm_efficiency;
  request.power_w = flags.power_w;
  check_mesh(flags.search.mesh, flags.workload.forward_only, swept);
  request.fixed = flags.search.mesh.fixed;
  check_memory(flags.memory);
  request.memory = flags.memory;
  request.execution = flags.search.execution.options();
  request.max_candidates = flags.search.keep();
  const ClusterFlags& cluster = flags.search.cluster;
  load_sources({.model = flags.model,
                .model_keys = flags.model_keys,
                .cluster = cluster.request,
                .calibration = cluster.calibration},
               *input, note_sink(invocation));
  check_transport(flags.search.execution, input->cluster);
  // Of a model without experts, the values that stand for none of them.
  const std::pair<const char*, bool> of_experts[] = {{"--expert", flags.expert.has_value()},
                                                     {"--expert-load", flags.expert_load.has_value()}};
  for (const auto& [flag, given] : of_experts)
    if (given && !input->model.moe)
      throw UsageError(
          fmt::format("{}: has no effect: {} has no experts; leave it out", flag, input->model.name));
  if (const auto fault = request_fault(request))
    throw UsageError(fmt::format("{}: {}", fault->flag, fault->why));
  return input;
}

}  // namespace usp::cli
