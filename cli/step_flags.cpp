// SPDX-License-Identifier: Apache-2.0
#include "step_flags.hpp"

#include "flag_effects.hpp"

#include "usp/base/error.hpp"
#include "usp/base/file.hpp"

#include <vector>

namespace usp::cli {
namespace {

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
  group.number("--microbatches", flags.microbatches, "parts of the batch run one after another (1)", 1,
               max_batch);
  group.number("--pipeline", flags.pipeline, "pipeline stages (1)", 1, max_ranks);
  group.number("--expert", flags.expert, "expert-parallel ranks (1)", 1, max_ranks);
}

/// 0: all tokens at once.
i64 parse_tile(const std::string& text, const std::string& flag) {
  return text == "0" ? 0 : parse_tokens(text, flag, max_tokens);
}

double parse_device_bytes(const std::string& text, const std::string& flag) {
  const auto bytes = static_cast<double>(parse_bytes(text, flag));
  if (bytes <= 0) throw UsageError(flag + ": a device without memory holds no plan");
  return bytes;
}

void add_memory_group(const Verb& verb, MemoryPolicy& memory) {
  FlagGroup group(verb, "Memory");
  group.parsed("--memory", memory.device_bytes, "memory of a device instead of the card's, e.g. 80GiB",
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
  workload.microbatches = flags.microbatches;
  workload.pipeline = flags.pipeline;
  workload.expert = flags.expert;
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

void add_step_flags(const Verb& verb, StepFlags& flags) {
  FlagGroup(verb, plain_group)
      .option("MODEL,--model", flags.model, "Hugging Face config.json, '-' for stdin, or a preset's name")
      ->type_name(input_file);
  // A verb below this one may have its own cluster.
  add_cluster_flags(verb, flags.search.cluster, "--cluster")->required(false);
  add_step_group(verb, flags);
  add_constraint_flags(verb, flags.search.mesh);
  add_memory_group(verb, flags.memory);
  add_search_flags(verb, flags.search);
}

std::unique_ptr<StepInput> load_step(const StepFlags& flags, const Invocation& invocation,
                                     SweptDegrees swept) {
  if (flags.model.empty())
    throw UsageError("no model is named; give a config.json or a preset such as llama-3.1-8b");
  if (flags.workload.seq == 0) throw UsageError("--seq is missing: tokens of one sequence, e.g. --seq 1M");
  auto input = std::make_unique<StepInput>();
  PlanRequest& request = input->request;
  request.workload = workload_of(flags);
  check_mesh(flags.search.mesh, flags.workload.forward_only, swept);
  request.fixed = flags.search.mesh.fixed;
  check_memory(flags.memory);
  request.memory = flags.memory;
  request.execution = flags.search.execution.options();
  request.max_candidates = flags.search.keep();
  const ClusterFlags& cluster = flags.search.cluster;
  check_cluster_flags(cluster);
  load_sources({.model = flags.model, .cluster = cluster.request, .calibration = cluster.calibration}, *input,
               note_sink(invocation));
  return input;
}

}  // namespace usp::cli
