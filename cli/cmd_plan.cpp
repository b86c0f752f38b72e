// SPDX-License-Identifier: Apache-2.0
#include "call_flags.hpp"
#include "flag_effects.hpp"
#include "price_command.hpp"
#include "progress.hpp"
#include "step_flags.hpp"

#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/base/text.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/make_plan.hpp"
#include "usp/planner/plan_attention.hpp"
#include "usp/planner/plan_print.hpp"
#include "usp/planner/plan_within.hpp"
#include "usp/schedule/plan_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <numeric>

namespace usp::cli {
namespace {

void add_output_flag(const Verb& verb, std::string& output) {
  FlagGroup(verb, plain_group)
      .option("-o,--output", output, "write the plan file here (- for stdout, instead of the text)")
      ->type_name(output_file);
}

/// Both would be one document on stdout.
void check_output(const std::string& output, const Invocation& invocation) {
  if (output == "-" && invocation.json)
    throw UsageError("-o - prints the plan file on stdout, where --json prints the result; give one of them");
}

struct PlanFlags {
  StepFlags step;
  const FrameworkTraits* framework = nullptr;  ///< of --framework; empty: none
  std::string output;
  std::optional<double> measured_s;
};

/// A framework's mode says how its exchange is executed.
void check_framework(const PlanFlags& flags) {
  if (flags.framework == nullptr || flags.framework->any_plan) return;
  const ExecutionFlags& execution = flags.step.search.execution;
  if (execution.transport || execution.no_overlap)
    throw UsageError(std::string(execution.transport ? "--transport" : "--no-overlap") +
                     " is of this project's runtime, and --framework prices the exchange of " +
                     std::string(flags.framework->name) + "; leave one of them out");
}

constexpr double min_step_s = 1e-6, max_step_s = 1e9;  ///< of a measured step: one kernel, 31 years

/// "61s", "850ms" or plain seconds.
double parse_step_time(const std::string& text, const std::string& flag) {
  std::string number = text;
  double unit = 1;
  const auto drop = [&](std::string_view suffix, double seconds) {
    if (number.size() <= suffix.size() || number.substr(number.size() - suffix.size()) != suffix)
      return false;
    number.resize(number.size() - suffix.size());
    unit = seconds;
    return true;
  };
  if (!drop("ms", 1e-3)) drop("s", 1);
  const double seconds = unit * parse_number(number, flag);
  if (!(seconds >= min_step_s && seconds <= max_step_s))
    throw UsageError(fmt::format("{}: '{}' is no time of a step, which is {} to {}, e.g. 61s", flag, text,
                                 format_seconds(min_step_s), format_seconds(max_step_s)));
  return seconds;
}

void plan_whole_step(const PlanFlags& flags, const Invocation& invocation) {
  const std::string& output = flags.output;
  check_output(output, invocation);
  const auto input = load_step(flags.step, invocation);
  input->request.measured_step_s = flags.measured_s;
  check_framework(flags);
  check_degrees(input->request);
  const FrameworkPlan plan = with_progress(invocation, input->request, [&]() -> FrameworkPlan {
    if (flags.framework != nullptr) return plan_within(input->request, *flags.framework);
    return {input->request, plan_step(input->request), nullptr};
  });
  if (!output.empty()) write_file(output, write_plan(make_plan_file(plan.request, plan.result.best())));
  if (output == "-") return;
  if (!output.empty()) note(invocation, "wrote " + output);
  std::cout << (invocation.json ? plan_result_json(plan.request, plan.result)
                                : plan_text(plan.request, plan.result, invocation.brief));
}

/// What a call does beyond masked softmax, where, and which tokens every rank holds.
struct RuleFlags {
  ScoreRules score;
  std::optional<double> scale;
  bool sink = false, lse = false;
  std::optional<i64> kv_seq, replicated;
  std::optional<Backend> backend;
};

struct PlanCallFlags {
  CallFlags call;
  RuleFlags rules;
  SearchFlags search;
  std::optional<int> ranks;
  std::string output;
};

/// Packed cross attention: as many documents of keys as of queries.
Documents cross_documents_of(const CallFlags& flags, const AttentionShape& shape) {
  const std::vector<i64>& queries = flags.workload.documents;
  if (queries.size() != flags.kv_documents.size())
    throw UsageError(
        fmt::format("--kv-documents: {} lengths of keys for {}; give one for each of --documents",
                    flags.kv_documents.size(), counted(queries.size(), "document")));
  check_documents(queries, shape.q_tokens);
  const i64 keys = std::accumulate(flags.kv_documents.begin(), flags.kv_documents.end(), i64{0});
  if (keys != shape.kv_tokens)
    throw UsageError(
        fmt::format("--kv-documents: the lengths sum to {}, and the keys are {} tokens (--kv-seq)", keys,
                    shape.kv_tokens));
  return cross_documents(queries, flags.kv_documents);
}

Documents documents_of(const CallFlags& flags, const AttentionShape& shape) {
  if (!flags.kv_documents.empty()) return cross_documents_of(flags, shape);
  if (shape.q_tokens == shape.kv_tokens) return flags.packed_documents();
  if (!flags.workload.documents.empty())
    throw UsageError(
        "--kv-seq with --documents is packed cross attention: say how many keys each document has, "
        "--kv-documents");
  return Documents::single(shape.q_tokens, shape.kv_tokens);
}

topology::Cluster cluster_of(const PlanCallFlags& flags, const CLI::App& verb, const Invocation& invocation) {
  const bool named = !flags.search.cluster.request.source.empty();
  if (named && flags.ranks)
    throw UsageError("--cluster and --ranks exclude each other; a cluster has its devices");
  if (named) return load_cluster(flags.search.cluster, invocation);
  if (!flags.ranks)
    throw UsageError("no machine is named; give --cluster, or --ranks N for threads of this host");
  for (const CLI::Option* option : verb.get_options())
    if (option->count() > 0 && option->get_name() != "--ranks" &&
        (option->get_group() == "Cluster" || option->get_name() == "--calibration"))
      throw UsageError(
          option->get_name() +
          " describes a cluster, --ranks plans for threads of this host; give --cluster instead");
  topology::Cluster cluster = thread_cluster(*flags.ranks);
  for (const std::string& text : cluster.notes) note(invocation, text);
  return cluster;
}

/// --transport has no effect where the host computes. On a cluster the backend that no flag names leaves the
/// price that of its GPUs.
void check_transport(const PlanCallFlags& flags, Backend backend) {
  const bool named = flags.rules.backend.has_value();
  if (!flags.search.execution.transport || backend->on_gpu || (!named && !flags.ranks)) return;
  throw UsageError("--transport carries data between GPUs, and " +
                   (named ? fmt::format("--backend {} computes on the host", word_of(backend))
                          : std::string("--ranks plans for threads of this host")) +
                   "; leave --transport out, or give --backend " + gpu_backend_words());
}

void check_blocks(i64 block_tokens, const AttentionShape& shape) {
  if (block_tokens > 0 && shape.q_tokens != shape.kv_tokens)
    throw UsageError("--blocks and --kv-seq exclude each other; a block pattern is over one list of tokens");
  if (block_tokens > shape.q_tokens)
    throw UsageError(fmt::format(
        "--blocks {} is more than the {} tokens of --seq: a pattern of one block has no edges; give "
        "fewer tokens per block",
        block_tokens, shape.q_tokens));
}

void set_rules(const PlanCallFlags& flags, AttentionRequest& request) {
  const RuleFlags& rules = flags.rules;
  request.score = rules.score;
  if (rules.scale) request.score.scale = *rules.scale;
  if (request.score.scale == 0 && rules.scale)
    throw UsageError(
        "--scale 0 would give every key the same weight; leave it out for 1 / sqrt of --head-dim");
  request.sink = rules.sink;
  request.return_lse = rules.lse;
  request.backend = rules.backend;
  check_transport(flags, rules.backend.value_or(Backend{}));
  const AttentionShape& shape = request.shape;
  check_blocks(rules.score.block_tokens, shape);
  if (!rules.replicated) return;
  const i64 tokens = *rules.replicated;
  if (tokens > std::min(shape.q_tokens, shape.kv_tokens))
    throw UsageError(fmt::format("--replicated: {} tokens are more than the call has", tokens));
  request.replicated_k = {{0, tokens}};
  if (shape.q_tokens == shape.kv_tokens) request.replicated_q = request.replicated_k;
}

void add_rule_flags(const Verb& verb, RuleFlags& flags, std::vector<i64>& kv_documents) {
  FlagGroup group(verb, "Attention");
  group.tokens("--kv-seq", flags.kv_seq, "global keys, where they are not the queries' tokens");
  FlagGroup(verb, "Attention")
      .parsed("--kv-documents", kv_documents,
              "keys of each of --documents in packed cross attention, e.g. 7k,0,33k", parse_document_lengths);
  group.number("--scale", flags.scale, "of q.k (1 / sqrt of --head-dim)", -1e6, 1e6);
  group.number("--softcap", flags.score.softcap, "logits become cap * tanh(logit / cap)", 0.0, 1e6);
  group.number("--dropout", flags.score.dropout, "probability to drop, below 1", 0.0, 0.999999);
  group.number("--blocks", flags.score.block_tokens,
               "edge in tokens of a per-head block pattern given with the run", 1, max_tokens);
  group.tokens("--replicated", flags.replicated,
               "the first N tokens are on every rank; of --kv-seq, only the keys");
  add_backend_flag(verb, flags.backend);
  group.flag("--alibi", flags.score.alibi, "ALiBi: a slope per query head, given with the run");
  group.flag("--sinks", flags.sink, "a learned logit per query head joins the softmax");
  group.flag("--lse", flags.lse, "return the log-sum-exp in the layout of the output");
}

/// The question without its machine.
AttentionRequest request_of(const PlanCallFlags& flags) {
  AttentionRequest request;
  request.shape = flags.call.shape();
  const std::vector<i64>& keys = flags.call.kv_documents;
  request.shape.kv_tokens = flags.rules.kv_seq.value_or(
      keys.empty() ? request.shape.kv_tokens : std::accumulate(keys.begin(), keys.end(), i64{0}));
  if (request.shape.query_heads % request.shape.kv_heads != 0)
    throw UsageError(fmt::format("--kv-heads: {} does not divide --heads {}", request.shape.kv_heads,
                                 request.shape.query_heads));
  request.band = flags.call.band(request.shape.kv_tokens == request.shape.q_tokens && keys.empty()
                                     ? 0
                                     : std::max(request.shape.kv_tokens, request.shape.q_tokens));
  request.documents = documents_of(flags.call, request.shape);
  set_rules(flags, request);
  if (request.documents.count() > 1)
    for (std::size_t i = 0; i + 1 < request.documents.cu_q.size(); ++i)
      request.lengths.push_back(request.documents.cu_q[i + 1] - request.documents.cu_q[i]);
  if (request.documents.count() == 1 && !keys.empty()) request.lengths = flags.call.workload.documents;
  request.kv_lengths = keys;
  request.training = !flags.call.workload.forward_only;
  check_mesh(flags.search.mesh, flags.call.workload.forward_only);
  request.fixed = flags.search.mesh.fixed;
  request.execution = flags.search.execution.options();
  request.max_candidates = flags.search.keep();
  request.all_devices = flags.ranks.has_value();
  return request;
}

void plan_call(const PlanCallFlags& flags, const CLI::App& verb, const Invocation& invocation) {
  check_output(flags.output, invocation);
  AttentionRequest request = request_of(flags);
  const topology::Cluster cluster = cluster_of(flags, verb, invocation);
  const Calibration calibration =
      flags.ranks ? uncalibrated(data_sheet_of(cluster))
                  : calibration_or_sheet(cluster, flags.search.cluster.calibration, note_sink(invocation));
  if (!request.backend.value_or(Backend{})->on_gpu) check_transport(flags.search.execution, cluster);
  note_void_p2p(flags.search.cluster, cluster, calibration, invocation);
  note_guessed_type(request.shape.dtype, calibration, invocation);
  request.cluster = &cluster;
  request.calibration = &calibration;
  const AttentionResult result = with_progress(invocation, request, [&] { return plan_attention(request); });
  if (!flags.output.empty()) write_file(flags.output, write_plan(make_plan_file(request, result.best())));
  if (flags.output == "-") return;
  if (!flags.output.empty()) note(invocation, "wrote " + flags.output);
  if (invocation.json) {
    std::cout << attention_result_json(request, result);
    return;
  }
  const std::string command = price_command(verb, result.best());
  std::cout << attention_text(request, result)
            << (command.empty() ? "" : fmt::format("\nto price this layout by itself\n  {}\n", command));
}

void register_call(CLI::App& plan, Invocation& invocation) {
  const Verb verb = add_verb(
      plan, invocation, "attention", "Plan one attention call instead of a whole step",
      "  usp plan attention --heads 32 --kv-heads 8 --head-dim 128 --seq 1M --cluster dgx-h100 --nodes 4\n"
      "  usp plan attention --heads 28 --kv-heads 4 --head-dim 64 --seq 4096 --ranks 6 --ring 3 --ulysses 2 "
      "-o plan.json");
  auto flags = std::make_shared<PlanCallFlags>();
  add_call_flags(verb, flags->call);
  add_rule_flags(verb, flags->rules, flags->call.kv_documents);
  add_cluster_flags(verb, flags->search.cluster, "--cluster")->required(false);
  FlagGroup(verb, "Cluster")
      .number("--ranks", flags->ranks,
              "threads of this host instead of a cluster, all in the call; times are a guess", 1, 4096);
  add_constraint_flags(verb, flags->search.mesh);
  add_search_flags(verb, flags->search);
  add_output_flag(verb, flags->output);
  verb.runs([flags, app = &verb.app, &invocation] { plan_call(*flags, *app, invocation); });
}

}  // namespace

void register_plan(CLI::App& app, Invocation& invocation) {
  const Verb verb = add_verb(
      app, invocation, "plan", "Choose the layout of a training or forward step on a cluster, with reasons",
      "  usp plan llama-3.1-8b --seq 1M --cluster dgx-h100 --nodes 4\n"
      "  usp plan config.json --seq 256k --batch 8 --cluster node.txt --device h100-sxm --nodes 4 --nic "
      "8x400G "
      "-o plan.json\n"
      "  usp plan llama-3.1-8b --seq 1M --cluster dgx-h100 --nodes 4 --framework megatron\n"
      "  usp plan qwen3-8b --seq 128k --document-lengths lengths.txt --cluster l40s --json\n"
      "  usp plan attention --heads 32 --kv-heads 8 --head-dim 128 --seq 128k --cluster dgx-h100");
  auto flags = std::make_shared<PlanFlags>();
  add_step_flags(verb, flags->step);
  add_output_flag(verb, flags->output);
  FlagGroup group(verb, plain_group);
  group.parsed("--framework", flags->framework, "keep to what it can do: " + framework_words(),
               [](const std::string& word, const std::string& flag) { return &framework_named(word, flag); });
  group.parsed("--measured-step", flags->measured_s,
               "a step as measured, e.g. 61s: its rates, and which term alone would explain it",
               parse_step_time);
  add_brief_flag(verb);
  register_call(verb.app, invocation);
  verb.runs([flags, &invocation] { plan_whole_step(*flags, invocation); });
}

}  // namespace usp::cli
