// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/memory.hpp"

#include "states.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"
#include "usp/base/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace usp {
namespace {

double d(std::int64_t value) {
  return static_cast<double>(value);
}

void check(const MemoryInput& in) {
  expects(in.model != nullptr && in.parameters != nullptr && in.workload != nullptr,
          "a memory input lacks its model");
  const MeshDegrees& m = in.mesh;
  const auto refuse = [&](const char* field, const std::string& why) {
    throw InvalidInput({"mesh", 0, field}, why);
  };
  for (const auto degree : {m.data, m.tensor, m.ring, m.ulysses, m.pipeline, m.expert})
    if (degree < 1) refuse("degrees", "a degree is at least 1");
  if (m.pipeline > in.model->layers) refuse("pipeline", "more stages than layers");
  if (i64{m.pipeline} * in.workload->virtual_stages > in.model->layers)
    refuse("virtual_stages", fmt::format("{} stages of {} chunks for {} layers; every chunk needs one",
                                         m.pipeline, in.workload->virtual_stages, in.model->layers));
  if (in.workload->recompute_layers.value_or(0) > in.model->layers)
    refuse("recompute_layers",
           fmt::format("{} of {} layers", *in.workload->recompute_layers, in.model->layers));
  if (in.workload->offload_layers.value_or(0) > in.model->layers)
    refuse("offload_layers", fmt::format("{} of {} layers", *in.workload->offload_layers, in.model->layers));
  const std::int64_t pool = in.workload->expert_pool(m.sharding_ranks(), m.tensor);
  if (pool % m.expert != 0)
    refuse("expert",
           fmt::format("{} expert ranks do not divide the {} {} ranks they are taken from", m.expert, pool,
                       in.workload->expert_tensor ? "data x sequence" : "data x sequence x tensor"));
  if (in.model->moe && in.model->moe->experts % m.expert != 0)
    refuse("expert", fmt::format("{} experts do not divide over {} ranks", in.model->moe->experts, m.expert));
  if (!in.model->moe && m.expert > 1) refuse("expert", "the model has no experts to split");
  if (in.local_tokens < 0 || in.reserve_fraction < 0 || in.loss_tile_tokens < 0 || in.mlp_tile_tokens < 0 ||
      in.gathered_layers < 0 || in.communicator_bytes < 0)
    refuse("sizes", "a size is not negative");
}

/// Activations of the stage, in bytes, by where they lie.
struct StageActivations {
  double saved = 0;      ///< kept on the device for the backward pass
  double host = 0;       ///< checkpoints in host memory
  double live = 0;       ///< largest layer that is being computed, beyond what is saved of it
  double in_flight = 1;  ///< microbatches whose activations are kept at once
};

double tile(std::int64_t tokens, std::int64_t limit) {
  return d(limit > 0 ? std::min(tokens, limit) : tokens);
}

/// What backward reads of a layer's attention: of a known schedule the saved state, and home tensors.
struct AttentionBytes {
  double all = 0;
  double home_qkv = 0;  ///< of these, q, k and v of the home layout
  double state = 0;     ///< of these, what the forward pass of attention alone leaves
};

AttentionBytes attention_bytes(const MemoryInput& in, int layer, const LayerActivations& a) {
  const double tokens = d(in.local_tokens);
  AttentionBytes bytes{tokens * a.attention, tokens * a.qkv, tokens * a.lse};
  for (const std::size_t k : in.model->kinds_of(layer)) {
    const auto known = in.attention_state.find(k);
    if (known == in.attention_state.end()) continue;
    const AttentionState& state = known->second;
    const LayerKind& kind = in.model->kinds[k];
    const LayerActivations one = mixer_activations(*in.model, kind, in.workload->dtype, in.mesh.tensor);
    const double dropped = tokens * (one.lse + (state.keeps_home_qkv ? 0 : one.qkv));
    bytes.all += kind.per_layer * (state.saved_bytes - dropped);
    if (!state.keeps_home_qkv) bytes.home_qkv -= kind.per_layer * tokens * one.qkv;
    bytes.state += kind.per_layer * (state.saved_bytes - tokens * one.lse);
  }
  return bytes;
}

/// Bytes of one layer: kept for backward, of these in host memory, and live beyond them while it is computed.
struct LayerBytes {
  double kept = 0, live = 0, host = 0;
};

/// What is kept of a layer, by kind of tensor.
struct KeptBytes {
  double of[kept_kinds] = {};
  double& operator[](Kept kind) { return of[static_cast<int>(kind)]; }
};

/// @param mlp inner activations of the MLP, unless it is tiled and computes its tiles again
KeptBytes kept_bytes(Recompute recompute, const LayerActivations& a, const AttentionBytes& attention,
                     double tokens, double mlp, bool alternate) {
  KeptBytes kept;
  kept[Kept::input] = tokens * a.checkpoint;
  if (recompute == Recompute::full || recompute == Recompute::offload) return kept;
  kept[Kept::attention] = attention.all - attention.home_qkv;
  if (recompute == Recompute::selective) kept[Kept::attention] -= attention.state;
  if (recompute == Recompute::keep_attention) {
    kept[Kept::mlp] = alternate ? tokens * a.alternate : 0;
    return kept;
  }
  kept[Kept::qkv] = attention.home_qkv;
  kept[Kept::mlp] = tokens * a.mlp_input;
  if (recompute != Recompute::mlp) kept[Kept::mlp] += tokens * a.norms + mlp;
  return kept;
}

LayerBytes layer_bytes(const MemoryInput& in, int layer, Recompute recompute) {
  const Workload& w = *in.workload;
  const LayerActivations a =
      layer_activations(*in.model, layer, w.dtype, in.mesh.tensor,
                        {w.sequence_parallel, in.mesh.expert > 1 ? w.expert_load : 1, w.expert_tensor});
  const double tokens = d(in.local_tokens), mlp_tokens = tile(in.local_tokens, in.mlp_tile_tokens);
  const AttentionBytes attention = attention_bytes(in, layer, a);
  const double checkpoint = tokens * a.checkpoint, input = tokens * a.mlp_input, norms = tokens * a.norms;
  const double mlp = mlp_tokens * a.mlp, all = checkpoint + attention.all + input + norms + mlp;
  // Two gradients of the residual's size, and those of the MLP's inner activations while they are live.
  const double gathered = tokens * a.gathered;
  if (!w.training) return {0, all + gathered, 0};
  const KeptBytes kept =
      kept_bytes(recompute, a, attention, tokens, mlp_tokens < tokens ? 0 : mlp, w.alternate_products);
  const Offload offload = offloaded(recompute, w.offload);
  LayerBytes bytes;
  for (const Word<Kept>& kind : word_list<Kept>()) {
    const double size = kept.of[static_cast<int>(kind.value)];
    bytes.kept += size;
    if (offload.has(kind.value)) bytes.host += size;
  }
  bytes.live = all - bytes.kept + 2 * checkpoint + mlp + gathered;
  return bytes;
}

/// Share of the layers that compute again.
double recomputed_share(const MemoryInput& in) {
  const Workload& w = *in.workload;
  if (!w.recompute_layers) return 1;
  return std::min(1.0, d(*w.recompute_layers) / d(in.model->layers));
}

/// Share of the layers whose tensors go to host memory.
double offloaded_share(const MemoryInput& in) {
  const Workload& w = *in.workload;
  if (!w.offload_layers) return recomputed_share(in);
  return std::min(1.0, d(*w.offload_layers) / d(in.model->layers));
}

StageActivations stage_activations(const MemoryInput& in, int stage) {
  const Workload& w = *in.workload;
  const StageLayers range = stage_layers(in, stage);
  const double again = recomputed_share(in), away = offloaded_share(in);
  StageActivations sum;
  sum.in_flight = in_flight_microbatches(w, in.mesh.pipeline, stage);
  double moving = 0;
  for (const AlikeLayers& layers : alike_layers(*in.model, range.first, range.last)) {
    const LayerBytes chosen = layer_bytes(in, layers.layer, w.recompute);
    const LayerBytes whole = again < 1 ? layer_bytes(in, layers.layer, Recompute::none) : chosen;
    const double count = d(layers.count);
    sum.saved += count * (again * chosen.kept + (1 - again) * whole.kept - away * chosen.host);
    sum.host += count * away * chosen.host;
    sum.live = std::max(sum.live, chosen.live);
    moving = std::max(moving, chosen.host);
  }
  sum.saved *= sum.in_flight;
  sum.host *= sum.in_flight;
  if (w.training) sum.saved += 2 * moving;  // of one layer on its way, of another in use
  return sum;
}

const char* kept_words(Recompute recompute) {
  switch (recompute) {
    case Recompute::none:
      return "all that backward reads";
    case Recompute::selective:
      return "all that backward reads except attention's own state";
    case Recompute::mlp:
      return "layer input, q, k, v, output, lse and MLP input";
    case Recompute::keep_attention:
      return "layer input, attention's output and lse";
    case Recompute::full:
    case Recompute::offload:
      return "layer inputs (checkpoints)";
  }
  throw InternalError("a recompute mode has no reason");
}

/// "; input, mlp in host memory instead, of 20 of 80 layers"; empty: nothing is.
std::string host_words(const MemoryInput& in) {
  const Workload& w = *in.workload;
  const Offload offload = offloaded(w.recompute, w.offload);
  if (!offload.any()) return "";
  return fmt::format("; {} in host memory instead{}", kinds_text(offload),
                     w.offload_layers
                         ? fmt::format(", of {} of {} layers", *w.offload_layers, in.model->layers)
                         : std::string());
}

/// An interleaved schedule keeps parts of some.
std::string microbatches_text(double in_flight) {
  return in_flight == std::floor(in_flight) ? counted(static_cast<std::int64_t>(in_flight), "microbatch")
                                            : format_fixed(in_flight, 1) + " microbatches";
}

std::string activation_reason(const MemoryInput& in, int stage, const StageActivations& sum) {
  const Workload& w = *in.workload;
  const StageLayers range = stage_layers(in, stage);
  std::string text = kept_words(w.recompute);
  if (w.recompute_layers)
    text += fmt::format(" of {} of {} layers, all of the others", *w.recompute_layers, in.model->layers);
  text += host_words(in);
  text += fmt::format(": {} x {} x {}", counted(range.last - range.first, "layer"),
                      counted(in.local_tokens, "token"), microbatches_text(sum.in_flight));
  const bool split = w.sequence_parallel && in.mesh.tensor > 1;
  return text + (split ? fmt::format(" / {} tensor ranks", in.mesh.tensor) : "");
}

void add_activation_rows(const MemoryInput& in, int stage, MemoryTable& table) {
  const StageActivations sum = stage_activations(in, stage);
  if (in.workload->training) {
    table.rows.push_back({MemoryKind::activations, "saved activations", whole_bytes(sum.saved),
                          reason_of(in, [&] { return activation_reason(in, stage, sum); })});
    if (sum.host > 0)
      table.host_rows.push_back({MemoryKind::activations, "offloaded activations", whole_bytes(sum.host),
                                 reason_of(in, [&] { return "of " + microbatches_text(sum.in_flight); })});
  }
  const bool tiled = in.mlp_tile_tokens > 0 && in.mlp_tile_tokens < in.local_tokens;
  table.rows.push_back(
      {MemoryKind::live_layer, "one live layer", whole_bytes(sum.live), reason_of(in, [&] {
         return fmt::format(
             "activations of the running layer{}{}", in.workload->training ? ", with its gradients" : "",
             tiled ? fmt::format("; MLP in tiles of {}", counted(in.mlp_tile_tokens, "token")) : "");
       })});
}

void add_lines(const std::vector<MemoryLine>& lines, MemoryKind kind, MemoryTable& table) {
  for (const auto& line : lines) table.rows.push_back({kind, line.name, line.bytes, line.reason});
}

void add_logits_row(const MemoryInput& in, MemoryTable& table) {
  if (!in.model->vocab) throw MissingValue({in.model->name, 0, "/vocab_size"}, "vocab_size", "add the key");
  const std::int64_t vocab = (*in.model->vocab + in.mesh.tensor - 1) / in.mesh.tensor;
  const auto tokens = static_cast<std::int64_t>(tile(in.local_tokens, in.loss_tile_tokens));
  const LogitsBytes bytes = logits_bytes(tokens, vocab, *in.workload);
  table.rows.push_back(
      {MemoryKind::logits, tokens < in.local_tokens ? "logits, tiled" : "logits", bytes.total(),
       reason_of(in, [&] {
         return fmt::format("{} x {} x ({}{}", counted(tokens, "token"), vocab, bytes_of(in.workload->dtype),
                            in.workload->training ? " B, 4 B fp32 copy, 4 B gradient)" : " B)");
       })});
}

void add_communicators_row(const MemoryInput& in, MemoryTable& table) {
  std::int64_t sets = 0;
  for (const CommunicatorGroup& group : in.communicators) sets += group.buffers;
  table.rows.push_back(
      {MemoryKind::communicators, "communicator buffers", sets * in.communicator_bytes, reason_of(in, [&] {
         std::vector<std::string> groups;
         for (const CommunicatorGroup& group : in.communicators)
           groups.push_back(group.buffers == 1 ? group.name
                                               : fmt::format("{} ({})", group.name, group.buffers));
         return sets == 0 ? std::string("no group of NCCL")
                          : fmt::format("{} each, of NCCL: {}", format_bytes(d(in.communicator_bytes)),
                                        fmt::join(groups, ", "));
       })});
}

MemoryTable stage_table(const MemoryInput& in, int stage) {
  MemoryTable table;
  table.stage = stage;
  add_state_rows(in, stage, table);
  add_activation_rows(in, stage, table);
  add_lines(in.attention_buffers, MemoryKind::attention_buffers, table);
  add_lines(in.kv_copies, MemoryKind::kv_copies, table);
  if (stage + 1 == in.mesh.pipeline) add_logits_row(in, table);
  add_communicators_row(in, table);
  double sum = 0;
  for (const auto& row : table.rows) sum += d(row.bytes);
  table.rows.push_back({MemoryKind::reserve, "allocator reserve", whole_bytes(sum * in.reserve_fraction),
                        format_percent(in.reserve_fraction) + " of the rows above"});
  static_cast<void>(whole_bytes(sum * (1 + in.reserve_fraction)));
  for (const auto& row : table.rows) table.total_bytes += row.bytes;
  for (const auto& row : table.host_rows) table.host_total_bytes += row.bytes;
  return table;
}

}  // namespace

double in_flight_microbatches(const Workload& workload, std::int64_t pipeline, int stage) {
  const double stages = d(pipeline), chunks = workload.virtual_stages;
  const double held = pipeline == 1 || chunks == 1
                          ? stages - stage
                          : (2 * (stages - 1 - stage) + (chunks - 1) * stages + 1) / chunks;
  return std::min(held, d(workload.microbatches));
}

std::int64_t MemoryTable::bytes_of(MemoryKind kind) const {
  std::int64_t sum = 0;
  for (const auto& row : rows)
    if (row.kind == kind) sum += row.bytes;
  return sum;
}

MemoryTable memory_per_rank(const MemoryInput& input) {
  check(input);
  MemoryTable most = stage_table(input, 0);
  if (input.mesh.pipeline == 1) return most;
  // The first stage holds the embedding and most microbatches, the second may have a layer more, the last one
  // holds head and logits.
  const int last = static_cast<int>(input.mesh.pipeline) - 1;
  const bool equal = input.model->layers % input.mesh.pipeline == 0;
  for (const int stage : {equal ? last : 1, last}) {
    if (stage == most.stage) continue;
    MemoryTable other = stage_table(input, stage);
    if (other.total_bytes > most.total_bytes) most = std::move(other);
  }
  return most;
}

}  // namespace usp
