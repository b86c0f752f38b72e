// SPDX-License-Identifier: Apache-2.0
#include "../search/memory_choices.hpp"
#include "known_models.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/detail/flops.hpp"
#include "usp/planner/model_config.hpp"
#include "usp/planner/step_score.hpp"
#include "usp/topology/compose.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>

namespace usp {
namespace {

/// A run that cannot be priced, with the reason.
struct NotPriced {
  std::string why;
};

bool says(const std::string& text, const char* word) {
  return lower(text).find(word) != std::string::npos;
}

Model dense_model(const std::string& name, const known::Shape& shape) {
  Model m;
  m.name = name;
  m.layers = shape.layers;
  m.hidden = shape.hidden;
  m.vocab = shape.vocab;
  m.gated_mlp = shape.gated;
  m.dense_intermediate = shape.ffn;
  m.tied_embeddings = shape.tied;
  LayerKind kind;
  for (int i = 0; i < static_cast<int>(m.layers); ++i) kind.layers.push_back(i);
  kind.query_heads = shape.heads;
  kind.kv_heads = shape.kv_heads;
  kind.head_dim_qk = kind.head_dim_v = m.hidden / kind.query_heads;
  m.kinds.push_back(std::move(kind));
  m.details = ParameterDetails{};
  return m;
}

/// Of stated shapes. An MLP four times as wide as the residual is the ungated one, of models that tie their
/// embeddings.
Model shaped_model(const StepRun& run, StepPrediction& p) {
  if (!run.heads) p.assumed.emplace_back("heads of width 64");
  const i64 heads = run.heads.value_or(std::max<i64>(1, *run.hidden / 64));
  const bool ungated = *run.ffn == 4 * *run.hidden;
  return dense_model(run.model, {"", *run.layers, *run.hidden, heads, run.kv_heads.value_or(heads), *run.ffn,
                                 *run.vocab, !ungated, ungated});
}

/// "Llama 2 7B-Instruct" as "llama-2-7b".
std::string plain_name(const std::string& printed) {
  std::string name = lower(printed);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == ' ' || c == '_'; }, '-');
  for (const std::string_view suffix : {"-instruct", "-base", "-chat"})
    if (name.size() > suffix.size() && name.substr(name.size() - suffix.size()) == suffix)
      name.resize(name.size() - suffix.size());
  return name;
}

Model model_of(const StepRun& run, StepPrediction& p) {
  if (run.layers && run.hidden && run.ffn && run.vocab) return shaped_model(run, p);
  const std::string name = plain_name(run.model);
  std::optional<Model> model;
  for (const known::Preset& preset : known::presets)
    if (name == preset.name) model = load_model(preset.preset);
  for (const known::Shape& shape : known::shapes)
    if (name == shape.name) model = dense_model(run.model, shape);
  if (!model) throw NotPriced{"neither its shape nor a known name is given"};
  if (run.vocab) model->vocab = run.vocab;
  return *std::move(model);
}

/// Hosts of a card, with NICs as its reference machine has them.
struct CardHost {
  const char* gpu;
  const char* device;
  int per_node;
  const char* nics;
};
constexpr CardHost hosts[] = {
    {"a100-40gb", "a100-sxm", 8, "8(200G)"}, {"a100-80gb", "a100-sxm", 8, "8(200G)"},
    {"a100", "a100-sxm", 8, "8(200G)"},      {"a800", "a800-sxm", 8, "8(200G)"},
    {"h100", "h100-sxm", 8, "8(400G)"},      {"h800", "h800-sxm", 8, "8(400G)"},
    {"h200", "h200-sxm", 8, "8(400G)"},      {"h20", "h20-sxm", 8, "8(400G)"},
    {"b200", "b200-sxm", 8, "8(400G)"},      {"b300", "b300-sxm", 8, "8(800G)"},
    {"gb200", "gb200", 4, "4(800G)"},        {"gb300", "gb300", 4, "4(800G)"},
    {"mi300x", "mi300x", 8, "8(400G)"},      {"l40s", "l40s", 8, "8(400G)"}};

/// "8 x 200 Gb/s HDR per node", "400 Gb/s RDMA per GPU": the synthetic form of a host's NICs.
std::optional<std::string> stated_nics(const std::string& text, int per_node) {
  const std::size_t at = text.find("Gb/s");
  if (at == std::string::npos) return std::nullopt;
  std::size_t end = at;
  while (end > 0 && text[end - 1] == ' ') --end;
  std::size_t begin = end;
  while (begin > 0 && std::isdigit(static_cast<unsigned char>(text[begin - 1]))) --begin;
  if (begin == end) return std::nullopt;
  const std::string rate = text.substr(begin, end - begin);
  if (says(text, "per gpu") || !says(text, " x ")) return fmt::format("{}({}G)", per_node, rate);
  const std::size_t times = text.rfind(" x ", begin);
  if (times == std::string::npos || times == 0) return std::nullopt;
  std::size_t first = times;
  while (first > 0 && std::isdigit(static_cast<unsigned char>(text[first - 1]))) --first;
  if (first == times) return std::nullopt;
  return fmt::format("{}({}G)", text.substr(first, times - first), rate);
}

/// The number before a unit in a text: "500 W limit", "2.4 TB/s". Empty: none.
std::optional<double> number_before(const std::string& text, const std::string& unit) {
  const std::size_t at = text.find(unit);
  if (at == std::string::npos || at == 0) return std::nullopt;
  std::size_t begin = at;
  while (begin > 0 && (std::isdigit(static_cast<unsigned char>(text[begin - 1])) || text[begin - 1] == '.'))
    --begin;
  if (begin == at) return std::nullopt;
  return std::strtod(text.c_str() + begin, nullptr);
}

topology::Cluster cluster_of(const StepRun& run, StepPrediction& p) {
  const auto* const host = std::find_if(std::begin(hosts), std::end(hosts),
                                        [&](const CardHost& h) { return lower(run.gpu) == h.gpu; });
  if (host == std::end(hosts)) throw NotPriced{fmt::format("the card '{}' is not known", run.gpu)};
  if (!run.gpus) throw NotPriced{"the number of devices is not stated"};
  const i64 gpus = *run.gpus;
  const i64 per_node = std::min(gpus, run.gpus_per_node.value_or(host->per_node));
  if (gpus % per_node != 0) throw NotPriced{fmt::format("{} devices are no whole number of hosts", gpus)};
  const std::string nics = stated_nics(run.interconnect, static_cast<int>(per_node)).value_or(host->nics);
  if (run.interconnect.empty() && gpus > per_node) p.assumed.emplace_back("NICs of the reference machine");
  const bool rack = host->per_node == 4;  // NVLink joins the hosts of a rack of 72
  const i64 domain = std::min<i64>(72, gpus);
  const std::string text =
      rack && per_node < gpus && gpus <= domain
          ? fmt::format("node:{} nvswitch:{} gpu:{}({}) nic:{} fabric:rail", gpus / per_node, gpus, per_node,
                        host->device, nics)
      : rack && gpus > domain && gpus % 64 == 0
          ? fmt::format("node:16 nvswitch:64 gpu:4({}) nic:{} fabric:rail", host->device, nics)
          : fmt::format("node:1 nvswitch gpu:{}({}) nic:{} fabric:rail", per_node, host->device, nics);
  topology::Cluster cluster =
      topology::compose({.source = text, .format = topology::SourceFormat::synthetic});
  const auto made = static_cast<i64>(cluster.devices.size());
  if (gpus % made != 0) throw NotPriced{fmt::format("{} devices are no whole number of racks", gpus)};
  if (gpus > made) cluster = topology::replicate(cluster, static_cast<int>(gpus / made));
  if (lower(run.gpu) == "a100-40gb") {  // NVIDIA A100 data sheet
    cluster.specs.front().memory_gb_s = {1555, topology::Provenance::preset, "NVIDIA A100 data sheet"};
    cluster.specs.front().memory_bytes = {0x1p30 * 40, topology::Provenance::preset,
                                          "NVIDIA A100 data sheet"};
  }
  // "gpu as printed: h100-sxm 96GB".
  if (const std::size_t at = run.printed.find("gpu as printed:"); at != std::string::npos)
    if (const auto gb = number_before(run.printed.substr(at), "GB"); gb && *gb > 0)
      cluster.specs.front().memory_bytes = {0x1p30 * *gb, topology::Provenance::preset, "the table"};
  if (const auto tb_s = number_before(run.printed, " TB/s"))
    cluster.specs.front().memory_gb_s = {*tb_s * 1000, topology::Provenance::preset, "the table"};
  p.card = host->device;
  return cluster;
}

void set_types(const StepRun& run, PlanRequest& request, StepPrediction& p) {
  Workload& w = request.workload;
  if (run.dtype == "fp16")
    w.dtype = Precision::fp16;
  else if (run.dtype.empty())
    p.assumed.emplace_back("bf16");
  else if (run.dtype == "fp8" || run.dtype == "mxfp8")
    request.fp8_products = true;
  else if (run.dtype != "bf16" && run.dtype != "16bit")
    throw NotPriced{"matrix products in " + run.dtype + " are not priced"};
  p.gated = !run.dtype.empty() && !request.fp8_products;
}

/// What the table's words keep; empty: not stated.
std::optional<Recompute> recompute_of(const StepRun& run, PlanRequest& request, StepPrediction& p) {
  const std::string& word = run.recompute;
  if (says(run.printed, "selective: mlp")) return Recompute::mlp;  // Megatron-Core's module of that name
  if (word == "none") return Recompute::none;
  if (word == "full") return Recompute::full;
  if (word == "selective_core_attention") return Recompute::selective;
  if (word == "selective" || word == "selective_per_op") {
    // PyTorch's policy by operator, torchtitan's default.
    request.workload.alternate_products = true;
    return Recompute::keep_attention;
  }
  p.assumed.emplace_back("recompute: as little as fits");
  return std::nullopt;
}

/// FSDP of PyTorch's second version, which torchtitan runs.
bool runs_fsdp2(const StepRun& run) {
  return says(run.printed, "fsdp2") || says(run.origin, "torchtitan");
}

void set_degrees(const StepRun& run, PlanRequest& request, StepPrediction& p) {
  if (!run.tensor && !run.pipeline) throw NotPriced{"its layout is not stated"};
  const i64 tensor = run.tensor.value_or(1), pipeline = run.pipeline.value_or(1),
            context = run.context.value_or(1);
  const i64 group = tensor * pipeline * context;
  if (group < 1 || *run.gpus % group != 0)
    throw NotPriced{fmt::format("tensor {} x pipeline {} x context {} does not divide {} devices", tensor,
                                pipeline, context, *run.gpus)};
  Constraints& fixed = request.fixed;
  fixed.tensor = static_cast<int>(tensor);
  fixed.data = static_cast<int>(*run.gpus / group);
  const bool ulysses = run.cp_method == "ulysses" || run.cp_method == "fpdt";
  fixed.ring = static_cast<int>(ulysses ? 1 : context);
  fixed.ulysses = static_cast<int>(ulysses ? context : 1);
  if (!ulysses && context > 1) {
    // The table's words and the methods that they name; its other rings are plain ones.
    const bool gathers = run.cp_method == "all_gather_kv" || run.cp_method == "torch_context_parallel";
    fixed.method = parse_word<Method>(gathers ? "all_gather_kv" : "ring", "cp_method");
    fixed.layout = LayoutKind::zigzag;
    if (run.cp_method.empty()) p.assumed.emplace_back("a zigzag ring");
  }
  Workload& w = request.workload;
  w.pipeline = static_cast<int>(pipeline);
  const i64 most_chunks = std::max<i64>(1, request.model->layers / pipeline);
  const bool interleaved = pipeline > 1 && !run.virtual_stages && says(run.kernels, "interleaved");
  if (interleaved) p.assumed.emplace_back("one layer per chunk");
  w.virtual_stages =
      static_cast<int>(interleaved ? most_chunks : std::min(most_chunks, run.virtual_stages.value_or(1)));
  w.expert = static_cast<int>(std::max<i64>(1, run.expert.value_or(1)));
  w.sequence_parallel = run.sequence_parallel != "no";
  if (w.expert > 1 && tensor > 1) {
    w.expert_tensor = false;
    p.assumed.emplace_back("whole experts on tensor ranks");
  }
  request.execution.transport = Transport::nccl;
}

void set_batch(const StepRun& run, PlanRequest& request, StepPrediction& p) {
  Workload& w = request.workload;
  if (!run.seq) throw NotPriced{"its sequence length is not stated"};
  w.seq = *run.seq;
  const i64 data = *request.fixed.data;
  i64 global = run.global_batch.value_or(0);
  if (global == 0) {
    global = data * run.micro_batch.value_or(1);
    p.assumed.emplace_back("one microbatch");
  }
  if (global % data != 0)
    throw NotPriced{fmt::format("{} replicas do not share {} sequences evenly", data, global)};
  if (!run.micro_batch) {
    request.global_batch = global;
    if (global > data) p.assumed.emplace_back("microbatches");
    return;
  }
  w.batch = global / data;
  if (w.batch % *run.micro_batch != 0)
    throw NotPriced{fmt::format("microbatches of {} do not divide {} sequences", *run.micro_batch, w.batch)};
  w.microbatches = w.batch / *run.micro_batch;
}

/// Tokens per second and device that a printed rate of FLOPs means.
std::optional<double> measured_tokens(const StepRun& run, const Model& model, double flops_per_token,
                                      double peak_flops) {
  if (run.tokens_s) return run.tokens_s;
  if (run.step_s && *run.step_s > 0 && run.global_batch)
    return static_cast<double>(*run.global_batch * *run.seq) / *run.step_s / static_cast<double>(*run.gpus);
  if (!run.tflops && !run.mfu) return std::nullopt;
  double counted = flops_per_token;
  if (says(run.notes, "full attention") || says(run.notes, "attention in full")) {
    const DenseShape shape{1, static_cast<double>(*run.seq), static_cast<double>(model.layers),
                           static_cast<double>(model.hidden), static_cast<double>(model.vocab.value_or(0))};
    counted = ulysses_paper_flops(shape) / shape.seq * (says(run.notes, "recomputed forward") ? 1 : 0.75);
  }
  return (run.tflops ? *run.tflops * 1e12 : *run.mfu * peak_flops) / counted;
}

/// Frameworks print what they hold, not what the planner keeps in reserve.
double held_gib(const MemoryTable& table) {
  return static_cast<double>(table.total_bytes - table.bytes_of(MemoryKind::reserve) -
                             table.bytes_of(MemoryKind::communicators)) /
         0x1p30;
}

/// torchtitan prints what its allocator reserved (components/metrics: max_reserved), fragments among it.
double printed_gib(const StepRun& run, const MemoryTable& table) {
  const bool reserved = says(run.origin, "pytorch/torchtitan");
  return held_gib(table) + (reserved ? static_cast<double>(table.bytes_of(MemoryKind::reserve)) / 0x1p30 : 0);
}

/// Kernels of attention before those of the calibrations, FlashAttention-2 on A100 and FlashAttention-3 on
/// Hopper.
void set_older_attention(const std::string& text, PlanRequest& request, StepPrediction& p) {
  // FlashAttention-3 (arXiv 2407.08608) is 1.5 to 2.0 times as fast as FlashAttention-2 on H100 forward, 1.5
  // to 1.75 times backward; the second version is about twice as fast as the first (arXiv 2307.08691).
  constexpr double first = 2, forward = 1.75, backward = 1.6;
  constexpr const char* newer_cards[] = {"h100", "h200", "h800", "h20"};
  const bool newer = std::any_of(std::begin(newer_cards), std::end(newer_cards),
                                 [&](const char* card) { return p.card.rfind(card, 0) == 0; });
  request.older_forward = newer ? forward : 1;
  request.older_backward = newer ? backward : 1;
  if (says(text, "flash attention 2") || !says(text, "flash attention")) {  // PyTorch's own is the second
    if (newer) p.assumed.emplace_back("FlashAttention-2");
    return;
  }
  // One of the two where no version is named: as long as their geometric mean, both within the band.
  const bool named = says(text, "flash attention v1");
  const double times = named ? first : std::sqrt(first);
  request.older_forward *= times;
  request.older_backward *= times;
  if (named) return;
  request.attention_band = times - 1;
  p.assumed.emplace_back("FlashAttention of version 1 or 2");
}

/// What the table says of kernels; nothing said is Megatron's set.
void set_kernels(const StepRun& run, PlanRequest& request, StepPrediction& p) {
  const std::string& text = run.kernels;
  const auto any = [&](std::initializer_list<const char*> words) {
    return std::any_of(words.begin(), words.end(), [&](const char* word) { return says(text, word); });
  };
  request.flash_attention = !says(text, "no flash");
  request.fused_pointwise =
      text.empty() ||
      (any({"compile", "fused", "transformer engine", "megatron", "hybridep"}) && !says(text, "eager"));
  request.expert_overlap = says(text, "ep overlap on");
  const bool newest =
      text.empty() || any({"flash attention 3", "transformer engine", "megatron", "hybridep", "interleaved"});
  if (request.flash_attention && !newest) set_older_attention(text, request, p);
  request.workload.fp32_gradients = runs_fsdp2(run);  // its default reduces in fp32
  request.library_attention = request.library_kernels = true;
  // Cross entropy of a framework holds the logits of all tokens, unless it is fused with their product.
  if (!says(text, "fused cross entropy")) request.memory.loss_tile_tokens = 0;
}

/// The calibration of the card, else its data sheet.
Calibration rates_of(const topology::Cluster& cluster) {
  try {
    return calibration_of(cluster);
  } catch (const MissingValue&) {
    return uncalibrated(data_sheet_of(cluster));
  }
}

void set_request(const StepRun& run, PlanRequest& request, StepPrediction& p) {
  if (says(run.notes, "lora")) throw NotPriced{"LoRA updates few weights: not a step that is priced"};
  set_types(run, request, p);
  set_degrees(run, request, p);
  set_batch(run, request, p);
  request.fixed.recompute = recompute_of(run, request, p);
  // FSDP of a pipeline keeps a stage's weights gathered and its gradients whole between microbatches.
  const bool gathered = runs_fsdp2(run) && request.workload.pipeline > 1;
  if (gathered) p.assumed.emplace_back("weights gathered once per step");
  if (run.zero)
    request.fixed.zero_stage = static_cast<int>(gathered ? 1 : *run.zero);
  else
    request.fixed.zero_stage = 1, p.assumed.emplace_back("ZeRO-1");
  set_kernels(run, request, p);
  const double limit = number_before(run.printed, " W").value_or(0);
  request.power_w = limit > 0 && limit < gemm_card(p.card).limit_w ? limit : 0;
}

/// The stated layout, with what is left open decided as the planner does.
PlanCandidate candidate_of(const PlanRequest& request, StepPricer& pricer) {
  Choice choice;
  choice.mesh = {1, *request.fixed.ring, *request.fixed.ulysses};
  choice.placement.tensor = *request.fixed.tensor;
  choice.placement.data = *request.fixed.data;
  choice.method = request.fixed.method.value_or(choice.method);
  choice.layout = request.fixed.layout.value_or(LayoutKind::contiguous);
  const std::vector<StepSplit> splits =
      splits_of(request, request.workload.pipeline, choice.data(), choice.mesh.size(), choice.tensor());
  if (splits.empty()) throw NotPriced{"its batch does not split"};
  choice.split = splits.front();
  const Workload w = workload_of(request, choice);
  if (const std::string reason =
          unsupported_reason({request.model, &w, pricer.world(), pricer.devices_per_node(), 1},
                             choice.tensor(), choice.data(), choice.mesh);
      !reason.empty())
    throw NotPriced{reason};
  const MemoryChoices made = choose_memory(request, pricer, choice, pricer.attention(choice), splits);
  return made.fastest ? *made.fastest : made.smallest;
}

/// Memory of a run that was published without what the planner keeps in reserve.
bool holds(const PlanCandidate& c, const StepPricer& pricer) {
  return held_gib(c.memory) * 0x1p30 <= pricer.device_bytes();
}

void price(const StepRun& run, StepPrediction& p) {
  const topology::Cluster cluster = cluster_of(run, p);
  const Model model = model_of(run, p);
  const Calibration calibration = rates_of(cluster);
  PlanRequest request;
  request.cluster = &cluster;
  request.calibration = &calibration;
  request.model = &model;
  set_request(run, request, p);
  auto pricer = std::make_unique<StepPricer>(request);
  PlanCandidate c = candidate_of(request, *pricer);
  if (!holds(c, *pricer) && request.memory.loss_tile_tokens == 0) {
    request.memory.loss_tile_tokens = MemoryPolicy{}.loss_tile_tokens;
    p.assumed.emplace_back("a fused loss: all logits do not fit");
    pricer = std::make_unique<StepPricer>(request);
    c = candidate_of(request, *pricer);
  }
  p.fits = holds(c, *pricer);
  p.tokens_s = 1 / c.seconds_per_token / static_cast<double>(pricer->world());
  p.band = c.band;
  p.memory_gib = printed_gib(run, c.memory);
  p.layout = describe(c.choice);
  p.calibrated = calibration.calibrated;
  p.gated = p.gated && p.calibrated;
  p.measured_s = measured_tokens(run, model, c.model_flops * c.seconds_per_token / c.step_s,
                                 c.mfu > 0 ? c.flop_s / c.mfu : 0);
}

}  // namespace

StepPrediction predict_run(const StepRun& run) {
  StepPrediction p;
  try {
    price(run, p);
  } catch (const NotPriced& reason) {
    p.why = reason.why;
  } catch (const Error& error) {
    p.why = error.what();
  }
  p.gated = p.gated && p.why.empty() && p.measured_s.has_value();
  return p;
}

}  // namespace usp
