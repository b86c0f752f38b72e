// SPDX-License-Identifier: Apache-2.0
#include "step_pricer.hpp"

#include "usp/base/error.hpp"
#include "usp/planner/detail/flops.hpp"
#include "usp/schedule/validate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace usp {
namespace {

double required(const topology::Quantity& quantity, const std::string& key, const char* remedy) {
  if (!quantity.known()) throw MissingValue({"cluster", 0, ""}, key, remedy);
  return *quantity.value;
}

/// GB/s of the NICs that the devices of the first host use: those nearest to some device, or all where
/// nothing is known.
double nearest_nics_gb_s(const topology::Cluster& cluster) {
  std::set<int> used;
  for (const topology::Device& device : cluster.devices)
    if (device.node == 0) used.insert(device.nics.begin(), device.nics.end());
  double gb_s = 0;
  for (const topology::Nic& nic : cluster.nics)
    if (nic.node == 0 && (used.empty() || used.count(nic.id) > 0)) gb_s += nic.gb_s.value.value_or(0);
  return gb_s;
}

/// Pairs of a query and a key that it sees, of one row.
double visible_pairs(const Documents& documents, const Workload& workload, const LayerKind& kind) {
  if (kind.kind == LayerMixer::cross)
    return static_cast<double>(workload.seq) * static_cast<double>(kind.cross_tokens);
  auto most = static_cast<double>(workload.seq);
  if (kind.kind == LayerMixer::sliding && kind.window) most = static_cast<double>(*kind.window);
  if (kind.sparse) most = static_cast<double>(kind.sparse->topk);
  double pairs = 0;
  for (std::size_t i = 0; i + 1 < documents.cu_q.size(); ++i) {
    const auto n = static_cast<double>(documents.cu_q[i + 1] - documents.cu_q[i]);
    const double window = std::min(n, most);
    pairs += workload.causal ? window * (window + 1) / 2 + (n - window) * window
                             : n * (2 * window - 1) - window * (window - 1);
  }
  return pairs;
}

}  // namespace

StepPricer::StepPricer(const PlanRequest& request, std::shared_ptr<LinkPricer> links)
    : request_(request),
      links_(links ? std::move(links) : std::make_shared<LinkPricer>(*request.cluster, *request.calibration)),
      parameters_(count_parameters(*request.model)) {
  const topology::Cluster& cluster = *request.cluster;
  expects(!cluster.devices.empty() && !cluster.specs.empty(), "a cluster without devices");
  check_workload(request.workload);
  constexpr const char* remedy = "name the card with --device";
  const topology::DeviceSpec& spec = cluster.specs[static_cast<std::size_t>(cluster.spec_of_device.front())];
  for (int kind : cluster.spec_of_device)
    if (kind != cluster.spec_of_device.front())
      throw InvalidInput(
          {"cluster", 0, "specs"},
          "devices of several kinds in one mesh are not planned; select one kind with --devices");
  const bool fp32 = request.workload.dtype == Precision::fp32;
  const topology::Quantity& peak = fp32                                        ? spec.fp32_tflops
                                   : request.workload.dtype == Precision::fp16 ? spec.fp16_tflops
                                                                               : spec.bf16_tflops;
  const double peak_flops = required(peak, "the device's peak rate", remedy) * 1e12;
  machine_.memory_bytes_s = required(spec.memory_gb_s, "the device's memory bandwidth", remedy) * 1e9;
  GemmCard card = gemm_card(spec.name);
  // Products are measured in a 16-bit type on cards, in fp32 on the cores of hosts.
  const bool of_type = fp32 == (request.calibration->link_class == host_links);
  if (const auto& measured = request.calibration->gemm; measured && of_type) {
    card.sustained = measured->share;
    card.band = measured->band;
    card.source = request.calibration->name;
  }
  card = card.slowest_of(static_cast<i64>(cluster.devices.size()));
  const GemmCard limited = card.at_power(request.power_w);
  slower_clock_ = card.sustained / limited.sustained;
  machine_.head = GemmModel(limited, peak_flops, machine_.memory_bytes_s, request.gemm_efficiency);
  machine_.gemm = machine_.head;
  machine_.fp8 = request.fp8_products;
  if (machine_.fp8) {
    GemmCard eight = limited;
    eight.sustained *= eight.fp8_share;
    machine_.gemm = GemmModel(eight, required(spec.fp8_tflops, "the device's fp8 peak", remedy) * 1e12,
                              machine_.memory_bytes_s, request.gemm_efficiency);
  }
  device_bytes_ = request.memory.device_bytes ? *request.memory.device_bytes
                                              : required(spec.memory_bytes, "the device's memory", remedy);
  devices_per_node_ =
      static_cast<int>(cluster.devices.size() / std::max<std::size_t>(1, cluster.nodes.size()));
  domain_devices_ = devices_per_node_;
  for (const topology::NvlinkDomain& domain : cluster.domains)
    domain_devices_ = std::max(domain_devices_, static_cast<int>(domain.devices.size()));
  nic_bytes_s_ = nearest_nics_gb_s(cluster) * 1e9;
  world_ = static_cast<i64>(cluster.devices.size());
  softmax_layers_ = request.model->attention_layers();
  const topology::Quantity& host = cluster.nodes.front().host_memory_bytes;
  host_bytes_ = request.memory.host_bytes.value_or(host.value.value_or(0));
  host_bytes_s_ = cluster.nodes.front().host_memory_gb_s.value.value_or(0) * 1e9;
  earlier_tokens_ = visible_pairs(attention_documents(request.workload, {}), request.workload, {}) /
                    static_cast<double>(request.workload.seq);
  const double passes = request.workload.training ? 3 : 1;
  flops_per_token_outside_ = passes * step_flops(*request.model, request.workload, 1).forward;
  flops_per_token_ = flops_per_token_outside_ + passes * attention_flops();
}

std::shared_ptr<const Documents> StepPricer::documents(std::size_t kind) {
  const LayerKind& layer = request_.model->kinds[kind];
  const bool own = layer.kind == LayerMixer::chunked || layer.kind == LayerMixer::cross;
  auto& slot = documents_[own ? layer.window.value_or(-layer.cross_tokens) : 0];
  if (!slot) slot = std::make_shared<const Documents>(attention_documents(request_.workload, layer));
  return slot;
}

/// FLOPs of one token in one forward pass of softmax attention: 2 for each visible pair, head and width of
/// keys and of values.
double StepPricer::attention_flops() const {
  double flops = 0;
  for (const LayerKind& kind : request_.model->kinds) {
    if (!kind.has_softmax()) continue;
    const double pairs = visible_pairs(attention_documents(request_.workload, kind), request_.workload, kind);
    flops += 2 * pairs * static_cast<double>(kind.query_heads * (kind.head_dim_qk + kind.head_dim_v)) *
             static_cast<double>(kind.calls());
  }
  return flops / static_cast<double>(request_.workload.seq);
}

AttentionPricer& StepPricer::pricer(std::size_t kind, const Choice& choice) {
  auto& slot = pricers_[{kind, choice.tensor(), workload_of(request_, choice).rows_per_microbatch(),
                         choice.latent_kv}];
  if (!slot) {
    Choice one;
    one.placement.tensor = choice.tensor();
    one.split = choice.split;
    const LayerKind& layer = request_.model->kinds[kind];
    slot = std::make_unique<AttentionPricer>(*links_, attention_plan(request_, one, layer).shape,
                                             documents(kind), request_.execution);
    if (choice.latent_kv)
      slot->ship_latent(latent_ring(slot->shape(), static_cast<double>(local_tokens(choice))));
  }
  return *slot;
}

LatentRing StepPricer::latent_ring(const AttentionShape& shape, double rows) const {
  const MlaRanks& mla = *request_.model->mla;
  const auto latent = static_cast<double>(mla.kv_lora_rank);
  const double wire = latent + static_cast<double>(mla.rope_head_dim);
  const double heads = static_cast<double>(shape.kv_heads) * (shape.head_dim_qk + shape.head_dim_v);
  const double made =
      static_cast<double>(shape.kv_heads) * (static_cast<double>(mla.nope_head_dim) + shape.head_dim_v);
  const double element = bytes_of(request_.workload.dtype);
  const auto seconds = [&](double m, double n, double k) {
    return machine_.head.seconds(m, n, k, element) / rows;
  };
  LatentRing ring{wire / heads, seconds(rows, made, latent), 0};
  ring.backward_s = ring.forward_s + seconds(rows, latent, made) + seconds(made, latent, rows);
  return ring;
}

std::string StepPricer::too_much_work(const Choice& choice) {
  for (std::size_t k = 0; k < request_.model->kinds.size(); ++k) {
    const LayerKind& kind = request_.model->kinds[k];
    if (!kind.has_softmax()) continue;
    std::string reason =
        pricer(k, choice).too_much_work(attention_plan(request_, choice, kind), choice.placement);
    if (!reason.empty()) return reason;
  }
  return "";
}

std::vector<LayerAttention> StepPricer::attention(const Choice& choice) {
  std::vector<LayerAttention> result;
  for (std::size_t k = 0; k < request_.model->kinds.size(); ++k) {
    const LayerKind& kind = request_.model->kinds[k];
    if (!kind.has_softmax()) continue;
    LayerAttention layer{k, attention_plan(request_, choice, kind), {}};
    check_attention_plan(layer.plan);
    layer.price = pricer(k, choice).price(layer.plan, choice.placement);
    result.push_back(std::move(layer));
    ++priced_;
  }
  return result;
}

double StepPricer::attention_seconds(const std::vector<LayerAttention>& attention) const {
  const bool training = request_.workload.training;
  double seconds = 0;
  for (const LayerAttention& layer : attention) {
    const auto layers = static_cast<double>(request_.model->kinds[layer.kind].calls());
    seconds += layers * (layer.price.forward.seconds * (training ? 2 : 1) +
                         (training ? layer.price.backward.seconds : 0));
  }
  return seconds;
}

i64 StepPricer::local_tokens(const Choice& choice) const {
  const Workload w = workload_of(request_, choice);
  return (w.seq + choice.mesh.size() - 1) / choice.mesh.size() * w.rows_per_microbatch();
}

i64 StepPricer::mlp_tile_of(const Choice& choice) const {
  const i64 chosen = choice.split ? choice.split->mlp_tile_tokens : 0;
  return chosen > 0 ? chosen : request_.memory.mlp_tile_tokens;
}

StepPricer::AttentionMemory StepPricer::attention_memory(const Choice& choice,
                                                         const std::vector<LayerAttention>& attention) {
  AttentionMemory memory;
  for (const LayerAttention& layer : attention) {
    AttentionState& state = memory.state[layer.kind];
    for (Pass pass : {Pass::forward, Pass::backward}) {
      if (pass == Pass::backward && !request_.workload.training) continue;
      const LiveBytes live = pricer(layer.kind, choice).live_bytes(layer.plan, pass);
      if (live.workspace > memory.workspace)
        memory.workspace = live.workspace, memory.kv_copies = live.workspace_kv_copies, memory.pass = pass;
      if (pass == Pass::forward) state.saved_bytes = live.saved;
      if (pass == Pass::backward) state.keeps_home_qkv = live.reads_home_qkv;
      memory.sums = std::max(memory.sums, live.sums);
    }
  }
  if (choice.latent_kv && !attention.empty()) {  // latents in flight, and the one block that is expanded
    const AttentionShape& shape = attention.front().plan.shape;
    const double rows = static_cast<double>(shape.batch * shape.kv_tokens) / choice.mesh.ring();
    const double block = rows * static_cast<double>(shape.kv_heads) * (shape.head_dim_qk + shape.head_dim_v) *
                         bytes_of(request_.workload.dtype);
    const double less = memory.kv_copies * (1 - latent_ring(shape, rows).share) - block;
    memory.kv_copies -= std::max(0.0, less);
    memory.workspace -= std::max(0.0, less);
  }
  return memory;
}

PlanCandidate StepPricer::candidate(const Choice& choice, const std::vector<LayerAttention>& attention,
                                    const AttentionMemory& memory, bool reasons) const {
  PlanCandidate c;
  c.choice = choice;
  if (choice.latent_kv)
    c.unexecutable_reason =
        "the ring ships latents, and no generator makes that schedule: it is priced alone";
  for (const LayerKind& kind : request_.model->kinds)
    if (kind.kind == LayerMixer::sparse || kind.kind == LayerMixer::cross)
      c.unexecutable_reason =
          fmt::format("the runtime has no schedule for {} layers",
                      kind.kind == LayerMixer::sparse ? "sparse-index" : "cross-attention");
  add_memory(c, memory, reasons);
  add_time(c, attention);
  return c;
}

std::vector<CommunicatorGroup> StepPricer::communicators(const Choice& choice, const Workload& w) const {
  std::vector<CommunicatorGroup> groups;
  if (request_.calibration->link_class == host_links) return groups;
  const auto add = [&](const char* name, i64 ranks, i64 buffers = 1) {
    if (ranks > 1) groups.push_back({name, buffers});
  };
  const Mesh& mesh = choice.mesh;
  LinkPricer::MeshPatterns& patterns = links_->patterns(mesh, choice.placement);
  const auto axis = [&](const char* name, schedule::Peers peers, i64 ranks, i64 neighbours) {
    if (ranks == 1) return;
    if (links_->pattern(patterns, peers, {}).crosses_network)
      add(name, ranks);
    else if (request_.execution.transport == Transport::nccl)
      add(name, ranks, neighbours);
  };
  axis("ulysses", schedule::Peers::every_ulysses, mesh.ulysses, mesh.ulysses - 1);
  const i64 others = mesh.ring() - 1, shifts = choice.method->displacements(mesh);
  axis("ring", schedule::Peers::every_ring, mesh.ring(), shifts > 0 ? std::min(others, shifts) : others);
  add("tensor", choice.tensor());
  if (w.training || choice.zero_stage == 3) add("data x sequence", i64{choice.data()} * mesh.size());
  add("experts", w.expert);
  add("pipeline", w.pipeline);
  return groups;
}

void StepPricer::add_memory(PlanCandidate& c, const AttentionMemory& memory, bool reasons) const {
  const Choice& choice = c.choice;
  const Workload workload = workload_of(request_, choice);
  MemoryInput input;
  input.model = request_.model;
  input.parameters = &parameters_;
  input.workload = &workload;
  input.mesh = {choice.data(),       choice.tensor(),   choice.mesh.ring(),
                choice.mesh.ulysses, workload.pipeline, workload.expert};
  input.local_tokens = local_tokens(choice);
  input.communicator_bytes = request_.memory.communicator_bytes;
  input.communicators = communicators(choice, workload);
  input.reserve_fraction = request_.memory.reserve_fraction;
  input.loss_tile_tokens = request_.memory.loss_tile_tokens;
  input.mlp_tile_tokens = mlp_tile_of(choice);
  input.reasons = reasons;
  const auto when = [&](const char* what) {
    if (!reasons) return std::string();
    return fmt::format("fullest tick of {}: {}", memory.pass == Pass::forward ? "forward" : "backward", what);
  };
  if (!request_.library_attention) input.attention_state = memory.state;
  input.attention_buffers = {
      {"attention workspace", static_cast<i64>(memory.workspace - memory.kv_copies + memory.sums),
       when(
           memory.sums > 0
               ? "q, k, v, o, lse and gradients on their way; one workspace for all layers, sums of gradients"
               : "q, k, v, o, lse and gradients on their way; one workspace for all layers")}};
  input.kv_copies = {{"keys and values of other ranks", static_cast<i64>(memory.kv_copies),
                      when("blocks in flight or gathered")}};
  c.memory = memory_per_rank(input);
  const double on_host = static_cast<double>(c.memory.host_total_bytes) * devices_per_node_;
  c.fits_host = host_bytes_ <= 0 || on_host <= host_bytes_;
  c.fits = static_cast<double>(c.memory.total_bytes) <= device_bytes_ && c.fits_host;
}

}  // namespace usp
