// SPDX-License-Identifier: Apache-2.0
#include "attention_flags.hpp"
#include "flag_effects.hpp"
#include "progress.hpp"
#include "step_flags.hpp"

#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/make_plan.hpp"
#include "usp/planner/plan_attention.hpp"
#include "usp/planner/plan_print.hpp"
#include "usp/schedule/limits.hpp"
#include "usp/schedule/plan_file.hpp"

#include <algorithm>
#include <iostream>

namespace usp::cli {
namespace {

constexpr const char* output_help = "write the plan file here (- for stdout, instead of the text)";

/// Both would be one document on stdout.
void check_output(const std::string& output, const Invocation& invocation) {
  if (output == "-" && invocation.json)
    throw UsageError("-o - prints the plan file on stdout, where --json prints the result; give one of them");
}

void plan_whole_step(const StepFlags& flags, const std::string& output, const Invocation& invocation) {
  check_output(output, invocation);
  const auto input = load_step(flags, invocation);
  PlanRequest& request = input->request;
  check_degrees(request);
  const PlanResult result = with_progress(invocation, request, [&] { return plan_step(request); });
  if (!output.empty()) write_file(output, write_plan(make_plan_file(request, result.best())));
  if (output == "-") return;
  std::cout << (invocation.json ? plan_result_json(request, result) : plan_text(request, result));
}

/// The call's flags: those of every verb for one call, and what only planning needs.
struct CallFlags {
  std::shared_ptr<AttentionFlags> attention;
  std::shared_ptr<ClusterFlags> cluster;
  FixedFlags fixed;
  ExecutionFlags execution;
  std::string kv_seq;
  ScoreRules score;
  std::optional<double> scale;
  bool sink = false, lse = false;
  std::string replicated;
  std::string backend;
  std::optional<int> ranks;
  std::string output;
  const CLI::App* verb = nullptr;
};

Documents documents_of(const CallFlags& flags, const AttentionShape& shape) {
  if (shape.q_tokens == shape.kv_tokens) return flags.attention->packed_documents();
  if (!flags.attention->documents.empty())
    throw UsageError("--kv-seq and --documents exclude each other; packed documents attend to themselves");
  return Documents::single(shape.q_tokens, shape.kv_tokens);
}

Cluster cluster_of(const CallFlags& flags, const Invocation& invocation) {
  const bool named = !flags.cluster->request.source.empty();
  if (named && flags.ranks)
    throw UsageError("--cluster and --ranks exclude each other; a cluster has its devices");
  if (named) return load_cluster(*flags.cluster, invocation);
  if (!flags.ranks)
    throw UsageError("no machine is named; give --cluster, or --ranks N for threads of this host");
  for (const CLI::Option* option : flags.verb->get_options())
    if (option->count() > 0 && option->get_name() != "--ranks" &&
        (option->get_group() == "Cluster" || option->get_name() == "--calibration"))
      throw UsageError(
          option->get_name() +
          " describes a cluster, --ranks plans for threads of this host; give --cluster instead");
  Cluster cluster = thread_cluster(*flags.ranks);
  for (const std::string& text : cluster.notes) note(invocation, text);
  return cluster;
}

/// What the call does beyond masked softmax, and which tokens every rank holds.
void set_rules(const CallFlags& flags, AttentionRequest& request) {
  request.score = flags.score;
  if (flags.scale) request.score.scale = *flags.scale;
  if (request.score.scale == 0 && flags.scale)
    throw UsageError(
        "--scale 0 would give every key the same weight; leave it out for 1 / sqrt of --head-dim");
  request.sink = flags.sink;
  request.return_lse = flags.lse;
  if (!flags.backend.empty()) request.backend = parse_word<Backend>(flags.backend, "--backend");
  // On a cluster the backend that no flag names leaves the price that of its GPUs.
  if (!flags.execution.transport.empty() && request.backend == Backend::cpu &&
      (!flags.backend.empty() || flags.ranks))
    throw UsageError("--transport carries data between GPUs, and " +
                     std::string(flags.backend.empty() ? "--ranks plans for threads of this host"
                                                       : "--backend cpu computes on the host") +
                     "; leave --transport out, or give --backend mma or cudnn");
  const AttentionShape& shape = request.shape;
  if (flags.score.block_tokens > 0 && shape.q_tokens != shape.kv_tokens)
    throw UsageError("--blocks and --kv-seq exclude each other; a block pattern is over one list of tokens");
  if (flags.score.block_tokens > shape.q_tokens)
    throw UsageError("--blocks " + std::to_string(flags.score.block_tokens) + " is more than the " +
                     std::to_string(shape.q_tokens) +
                     " tokens of --seq: a pattern of one block has no edges; give fewer tokens per block");
  if (flags.replicated.empty()) return;
  const std::int64_t tokens = parse_tokens(flags.replicated, "--replicated", max_tokens);
  if (tokens > std::min(shape.q_tokens, shape.kv_tokens))
    throw UsageError("--replicated: " + std::to_string(tokens) + " tokens are more than the call has");
  if (tokens == 0) return;
  request.replicated_k = {{0, tokens}};
  if (shape.q_tokens == shape.kv_tokens) request.replicated_q = request.replicated_k;
}

void add_rule_flags(CLI::App& verb, CallFlags& flags) {
  const auto option = [&](const char* name, auto& target, const char* help) {
    return verb.add_option(name, target, help)->group("Attention");
  };
  option("--scale", flags.scale, "of q.k (1 / sqrt of --head-dim)")->check(within(-1e6, 1e6));
  option("--softcap", flags.score.softcap, "logits become cap * tanh(logit / cap)")->check(within(0.0, 1e6));
  option("--dropout", flags.score.dropout, "probability to drop, below 1")->check(within(0.0, 0.999999));
  option("--blocks", flags.score.block_tokens,
         "edge in tokens of a per-head block pattern given with the run")
      ->check(within(std::int64_t{1}, max_tokens));
  option("--replicated", flags.replicated,
         "the first N tokens are on every rank; of --kv-seq, only the keys");
  option("--backend", flags.backend, "who computes the blocks: cpu, mma (CUDA), cudnn (cpu)");
  verb.add_flag("--alibi", flags.score.alibi, "ALiBi: a slope per query head, given with the run")
      ->group("Attention");
  verb.add_flag("--sinks", flags.sink, "a learned logit per query head joins the softmax")
      ->group("Attention");
  verb.add_flag("--lse", flags.lse, "return the log-sum-exp in the layout of the output")->group("Attention");
}

void plan_call(const CallFlags& flags, const Invocation& invocation) {
  check_output(flags.output, invocation);
  AttentionRequest request;
  request.shape = flags.attention->shape();
  if (!flags.kv_seq.empty()) request.shape.kv_tokens = parse_tokens(flags.kv_seq, "--kv-seq", max_tokens);
  if (request.shape.query_heads % request.shape.kv_heads != 0)
    throw UsageError("--kv-heads: " + std::to_string(request.shape.kv_heads) + " does not divide --heads " +
                     std::to_string(request.shape.query_heads));
  request.band = flags.attention->band();
  request.documents = documents_of(flags, request.shape);
  set_rules(flags, request);
  if (bytes_of(request.shape.dtype) > 2)
    note(invocation,
         "times of " + flags.attention->dtype + " are a guess: no kernel of that type is calibrated");
  if (request.documents.count() > 1)
    for (std::size_t i = 0; i + 1 < request.documents.cu_q.size(); ++i)
      request.lengths.push_back(request.documents.cu_q[i + 1] - request.documents.cu_q[i]);
  request.training = !flags.attention->forward_only;
  refuse_without_backward(flags.attention->forward_only, {{"--dkv-return", !flags.fixed.dkv_return.empty()}});
  request.fixed = flags.fixed.constraints();
  request.execution = flags.execution.options();
  request.max_candidates = flags.execution.keep();
  request.all_devices = flags.ranks.has_value();
  const Cluster cluster = cluster_of(flags, invocation);
  const Calibration calibration =
      flags.ranks ? uncalibrated(data_sheet_of(cluster))
                  : calibration_or_sheet(cluster, flags.execution.calibration, invocation);
  request.cluster = &cluster;
  request.calibration = &calibration;
  AttentionResult result = with_progress(invocation, request, [&] { return plan_attention(request); });
  if (flags.ranks && request.backend != Backend::cpu)
    result.notes.push_back(
        "--ranks prices backend " + flags.backend +
        " as threads of a host: the times say nothing about GPUs; give --cluster for times");
  if (!flags.output.empty()) write_file(flags.output, write_plan(make_plan_file(request, result.best())));
  if (flags.output == "-") return;
  std::cout << (invocation.json ? attention_result_json(request, result) : attention_text(request, result));
}

void register_call(CLI::App& plan, Invocation& invocation) {
  CLI::App* verb = add_verb(
      plan, invocation, "attention", "Plan one attention call instead of a whole step",
      "  usp plan attention --heads 32 --kv-heads 8 --head-dim 128 --seq 1M --cluster dgx-h100 --nodes 4\n"
      "  usp plan attention --heads 28 --kv-heads 4 --head-dim 64 --seq 4096 --ranks 6 --ring 3 --ulysses 2 "
      "-o plan.json");
  auto flags = std::make_shared<CallFlags>();
  flags->verb = verb;
  flags->attention = add_attention_flags(*verb);
  verb->add_option("--kv-seq", flags->kv_seq, "global keys, where they are not the queries' tokens")
      ->group("Attention");
  add_rule_flags(*verb, *flags);
  flags->cluster = add_cluster_flags(*verb, "--cluster");
  verb->get_option("--cluster")->required(false);
  verb->add_option("--ranks", flags->ranks,
                   "threads of this host instead of a cluster, all in the call; times are a guess")
      ->check(within(1, 4096))
      ->group("Cluster");
  add_fixed_flags(*verb, flags->fixed);
  add_execution_flags(*verb, flags->execution);
  verb->add_option("-o,--output", flags->output, output_help)->type_name(output_file);
  verb->callback(
      [flags, &invocation] { invocation.action = [flags, &invocation] { plan_call(*flags, invocation); }; });
}

}  // namespace

void register_plan(CLI::App& app, Invocation& invocation) {
  CLI::App* verb = add_verb(
      app, invocation, "plan", "Choose the layout of a training or forward step on a cluster, with reasons",
      "  usp plan llama-3.1-8b --seq 1M --cluster dgx-h100 --nodes 4\n"
      "  usp plan config.json --seq 256k --batch 8 --cluster node.txt --device h100-sxm --nodes 4 --nic "
      "8x400G "
      "-o plan.json\n"
      "  usp plan qwen3-8b --seq 128k --document-lengths lengths.txt --cluster l40s --json\n"
      "  usp plan attention --heads 32 --kv-heads 8 --head-dim 128 --seq 128k --cluster dgx-h100");
  auto flags = add_step_flags(*verb);
  auto output = std::make_shared<std::string>();
  verb->add_option("-o,--output", *output, output_help)->type_name(output_file);
  register_call(*verb, invocation);
  verb->callback([verb, flags, output, &invocation] {
    if (!verb->get_subcommands().empty()) return;
    invocation.action = [flags, output, &invocation] { plan_whole_step(*flags, *output, invocation); };
  });
}

}  // namespace usp::cli
