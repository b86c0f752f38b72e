// SPDX-License-Identifier: Apache-2.0
#include "step_flags.hpp"

#include "flag_effects.hpp"

#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/base/units.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/model_config.hpp"
#include "usp/schedule/limits.hpp"

namespace usp::cli {
namespace {

/// Adds options of one group under the name it has in --help.
class Group {
 public:
  Group(CLI::App& verb, const char* name) : verb_(verb), name_(name) {}

  template <class T>
  CLI::Option* option(const char* name, T& target, const char* help) {
    return verb_.add_option(name, target, help)->group(name_);
  }
  void flag(const char* name, bool& target, const char* help) {
    verb_.add_flag(name, target, help)->group(name_);
  }

 private:
  CLI::App& verb_;
  const char* name_;
};

void add_workload(CLI::App& verb, StepFlags& flags) {
  Group group(verb, "Step");
  group.option("--seq", flags.seq, "tokens of one sequence, e.g. 128k or 1M");
  group.option("--batch", flags.batch, "sequences of one replica in one step (1)")
      ->check(within(std::int64_t{1}, max_batch));
  group.option("--dtype", flags.dtype, "bf16, fp16 or fp32 (bf16)");
  group.flag("--causal", flags.causal, "causal mask (the default)");
  group.flag("--full", flags.full, "no mask");
  add_document_flags(verb, flags.documents, "Step");
  group.flag("--forward-only", flags.forward_only, "no backward pass, no optimizer");
  group.option("--recompute", flags.recompute, "none, selective, full or offload; default: what is fastest");
  group.option("--zero", flags.zero,
               "ZeRO stage 0 to 3 over data x sequence ranks; default: what is fastest");
  group.option("--optimizer", flags.optimizer, "adamw or sgd (adamw)");
  group.option("--microbatches", flags.microbatches, "parts of the batch run one after another (1)")
      ->check(within(std::int64_t{1}, max_batch));
  group.option("--pipeline", flags.pipeline, "pipeline stages (1)")
      ->check(within(1, static_cast<int>(max_ranks)));
  group.option("--expert", flags.expert, "expert-parallel ranks (1)")
      ->check(within(1, static_cast<int>(max_ranks)));
}

void add_memory(CLI::App& verb, StepFlags& flags) {
  Group memory(verb, "Memory");
  memory.option("--memory", flags.memory, "memory of a device instead of the card's, e.g. 80GiB");
  memory.option("--reserve", flags.reserve, "allocator fragmentation, as a share of all other rows (0.08)")
      ->check(within(0.0, 1.0));
  memory.option("--loss-tile", flags.loss_tile, "tokens whose logits exist at once; 0: all (2048)");
  memory.option("--mlp-tile", flags.mlp_tile, "tokens whose MLP activations exist at once; 0: all (0)");
}

Workload workload_of(const StepFlags& flags) {
  if (flags.causal && flags.full) throw UsageError("--causal and --full exclude each other; give one");
  refuse_without_backward(flags.forward_only,
                          {{"--recompute", !flags.recompute.empty()},
                           {"--optimizer", !flags.optimizer.empty()},
                           {"--dkv-return", !flags.fixed.dkv_return.empty()},
                           // Stage 3 shards parameters too, and stage 0 decides against that.
                           {"--zero 1", flags.zero == "1"},
                           {"--zero 2", flags.zero == "2"}});
  Workload workload;
  workload.seq = parse_tokens(flags.seq, "--seq", max_tokens);
  workload.batch = flags.batch;
  workload.dtype = parse_word<Precision>(flags.dtype, "--dtype");
  workload.causal = !flags.full;
  workload.documents = flags.documents.lengths(workload.seq);
  workload.training = !flags.forward_only;
  if (!flags.optimizer.empty()) workload.optimizer = parse_word<Optimizer>(flags.optimizer, "--optimizer");
  workload.microbatches = flags.microbatches;
  workload.pipeline = flags.pipeline;
  workload.expert = flags.expert;
  if (!flags.recompute.empty()) workload.recompute = parse_word<Recompute>(flags.recompute, "--recompute");
  if (!flags.zero.empty()) workload.zero_stage = parse_zero_stage(flags.zero, "--zero");
  check_workload(workload);
  return workload;
}

Constraints constraints_of(const StepFlags& flags) {
  Constraints fixed = flags.fixed.constraints();
  if (!flags.recompute.empty()) fixed.recompute = parse_word<Recompute>(flags.recompute, "--recompute");
  if (!flags.zero.empty()) fixed.zero_stage = parse_zero_stage(flags.zero, "--zero");
  return fixed;
}

std::int64_t tile(const std::string& text, const char* flag, std::int64_t standard) {
  if (text.empty()) return standard;
  return text == "0" ? 0 : parse_tokens(text, flag, max_tokens);
}

MemoryPolicy memory_of(const StepFlags& flags) {
  MemoryPolicy policy;
  if (flags.reserve) {
    if (!(*flags.reserve >= 0 && *flags.reserve < 1))
      throw UsageError("--reserve: a share of the other rows is needed, 0 or more and less than 1");
    policy.reserve_fraction = *flags.reserve;
  }
  policy.loss_tile_tokens = tile(flags.loss_tile, "--loss-tile", policy.loss_tile_tokens);
  policy.mlp_tile_tokens = tile(flags.mlp_tile, "--mlp-tile", policy.mlp_tile_tokens);
  if (!flags.memory.empty()) {
    policy.device_bytes = static_cast<double>(parse_bytes(flags.memory, "--memory"));
    if (*policy.device_bytes <= 0) throw UsageError("--memory: a device without memory holds no plan");
  }
  return policy;
}

}  // namespace

Constraints FixedFlags::constraints() const {
  if (!ring_varies)
    refuse_without_ring(ring, {{"--method", !method.empty()},
                               {"--layout", !layout.empty()},
                               {"--dkv-return", !dkv_return.empty()}});
  if (!ring_varies && !ulysses_varies) refuse_order_of_one_axis(order, ring, ulysses);
  Constraints fixed;
  fixed.ring = ring;
  fixed.ulysses = ulysses;
  fixed.data = data;
  fixed.tensor = tensor;
  fixed.head_chunks = head_chunks;
  if (!method.empty()) fixed.method = parse_word<Method>(method, "--method");
  if (!layout.empty()) fixed.layout = parse_word<LayoutKind>(layout, "--layout");
  if (!dkv_return.empty()) fixed.dkv_return = parse_word<DkvReturn>(dkv_return, "--dkv-return");
  if (!order.empty()) fixed.order = parse_word<AxisOrder>(order, "--order");
  return fixed;
}

void add_fixed_flags(CLI::App& verb, FixedFlags& flags) {
  Group group(verb, "Decided already (the planner chooses the rest)");
  const auto whole = [&](const char* name, std::optional<int>& target, i64 most, const char* help) {
    group.option(name, target, help)->check(within(1, static_cast<int>(most)));
  };
  whole("--ring", flags.ring, max_degree, "ring degree");
  whole("--ulysses", flags.ulysses, max_degree, "Ulysses degree");
  whole("--data", flags.data, max_ranks, "data-parallel replicas");
  whole("--tensor", flags.tensor, max_ranks, "tensor-parallel degree");
  whole("--head-chunks", flags.head_chunks, max_head_chunks,
        "chunks in which heads are exchanged and attended");
  group.option("--method", flags.method, "ring, ring_direct, all_gather_kv or double_ring");
  group.option("--layout", flags.layout, "contiguous, zigzag, striped or balanced");
  group.option("--dkv-return", flags.dkv_return, "circulate, direct or cycle");
  group.option("--order", flags.order, "axis on neighbouring devices: ulysses_inner or ring_inner");
}

ExecutionOptions ExecutionFlags::options() const {
  ExecutionOptions options;
  if (!transport.empty()) options.transport = parse_word<Transport>(transport, "--transport");
  options.pack_kernels = options.transport == Transport::nccl;
  options.overlap = !no_overlap;
  return options;
}

void add_execution_flags(CLI::App& verb, ExecutionFlags& flags) {
  Group group(verb, "Execution");
  group.option("--transport", flags.transport, "inside a host: copy_engine or nccl (copy_engine)");
  group.flag("--no-overlap", flags.no_overlap, "transfers and kernels one after another");
  group
      .option("--calibration", flags.calibration,
              "calibration file or shipped calibration; default: the one of the card")
      ->type_name(input_file);
  group.option("--top", flags.top, "candidates to keep (32)")
      ->check(within(std::size_t{1}, std::size_t{100000}));
}

std::vector<std::int64_t> DocumentFlags::lengths(std::int64_t seq) const {
  if (!documents.empty() && !document_lengths.empty())
    throw UsageError("--documents and --document-lengths exclude each other; give one");
  if (seed && document_lengths.empty())
    throw UsageError("--seed draws documents from --document-lengths; give that file, or leave --seed out");
  if (!documents.empty()) return parse_document_lengths(documents, "--documents");
  if (document_lengths.empty()) return {};
  return draw_documents(read_document_lengths(read_file(document_lengths), document_lengths), seq,
                        seed.value_or(0));
}

void add_document_flags(CLI::App& verb, DocumentFlags& flags, const char* name) {
  Group group(verb, name);
  group.option("--documents", flags.documents, "lengths of packed documents that sum to --seq, e.g. 96k,32k");
  group
      .option("--document-lengths", flags.document_lengths,
              "file with one length per line; documents are drawn from it until --seq is full")
      ->type_name(input_file);
  group.option("--seed", flags.seed, "of that draw (0)")->check(within(std::uint64_t{0}));
}

std::shared_ptr<StepFlags> add_step_flags(CLI::App& verb) {
  auto flags = std::make_shared<StepFlags>();
  verb.add_option("MODEL,--model", flags->model,
                  "Hugging Face config.json, '-' for stdin, or a preset's name")
      ->type_name(input_file);
  flags->cluster = add_cluster_flags(verb, "--cluster");
  verb.get_option("--cluster")->required(false);  // a verb below this one may have its own
  add_workload(verb, *flags);
  add_fixed_flags(verb, flags->fixed);
  add_memory(verb, *flags);
  add_execution_flags(verb, flags->execution);
  return flags;
}

Calibration calibration_or_sheet(const Cluster& cluster, const std::string& name,
                                 const Invocation& invocation) {
  if (!name.empty() || !cluster.calibration.empty()) return calibration_of(cluster, name);
  note(invocation, "no calibration fits this card: times are uncalibrated, from its data sheet");
  return uncalibrated(data_sheet_of(cluster));
}

std::unique_ptr<StepInput> load_step(const StepFlags& flags, const Invocation& invocation) {
  if (flags.model.empty())
    throw UsageError("no model is named; give a config.json or a preset such as llama-3.1-8b");
  if (flags.seq.empty()) throw UsageError("--seq is missing: tokens of one sequence, e.g. --seq 1M");
  auto input = std::make_unique<StepInput>();
  PlanRequest& request = input->request;
  request.workload = workload_of(flags);
  request.fixed = constraints_of(flags);
  request.memory = memory_of(flags);
  request.execution = flags.execution.options();
  request.max_candidates = flags.execution.keep();
  input->model = load_model(flags.model);
  input->cluster = load_cluster(*flags.cluster, invocation);
  input->calibration = calibration_or_sheet(input->cluster, flags.execution.calibration, invocation);
  request.cluster = &input->cluster;
  request.calibration = &input->calibration;
  request.model = &input->model;
  return input;
}

}  // namespace usp::cli
