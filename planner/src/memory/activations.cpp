// SPDX-License-Identifier: Apache-2.0
#include "states.hpp"

#include "usp/base/error.hpp"
#include "usp/planner/memory.hpp"

namespace usp {
namespace {

double d(std::int64_t value) {
  return static_cast<double>(value);
}

/// Inner width per token of all MLPs that one token runs through. @param load of the experts
double active_width(const Model& model, int layer, double load) {
  if (model.is_moe_layer(layer))
    return load * d(model.moe->experts_per_token) * d(model.moe->moe_intermediate) +
           (model.moe->shared_experts > 0 ? d(model.moe->shared_intermediate) : 0);
  const auto width = model.mlp_width(layer);
  if (!width) throw MissingValue({model.name, 0, "/intermediate_size"}, "intermediate_size", "add the key");
  return d(*width);
}

/// Elements of q, k and v of one token in a softmax layer.
double qkv_elements(const LayerKind& kind) {
  return d(kind.query_heads) * d(kind.head_dim_qk) +
         d(kind.kv_heads) * (d(kind.head_dim_qk) + d(kind.head_dim_v));
}

double attention_bytes(const Model& model, const LayerKind& kind, double element) {
  if (kind.kind == LayerMixer::none) return 0;
  if (const auto& l = kind.linear) {
    const double keys = d(l->key_heads) * d(l->key_dim), values = d(l->value_heads) * d(l->value_dim);
    // q, k and v before and after the short convolution, the output gate and the output; decay and beta in
    // fp32.
    const double mixed = 2 * keys + values;
    return element * ((l->conv_kernel > 0 ? 2 : 1) * mixed + 2 * values) + 8 * d(l->value_heads);
  }
  const double out = d(kind.query_heads) * d(kind.head_dim_v);
  double latent = 0;
  if (model.mla)
    latent = d(model.mla->q_lora_rank.value_or(0)) + d(model.mla->kv_lora_rank + model.mla->rope_head_dim);
  return element * (qkv_elements(kind) + out + (kind.output_gate ? 2 * out : 0) + latent) +
         4 * d(kind.query_heads);
}

}  // namespace

LayerActivations mixer_activations(const Model& model, const LayerKind& kind, Precision dtype,
                                   std::int64_t tensor) {
  const double element = usp::bytes_of(dtype), split = d(tensor);
  LayerActivations a;
  a.attention = attention_bytes(model, kind, element) / split;
  if (!kind.has_softmax()) return a;
  a.qkv = element * qkv_elements(kind) / split;
  a.lse = 4 * d(kind.query_heads) / split;
  a.alternate =
      element * (d(kind.query_heads) * d(kind.head_dim_qk) + d(kind.kv_heads) * d(kind.head_dim_v)) / split;
  return a;
}

LayerActivations layer_activations(const Model& model, int layer, Precision dtype, std::int64_t tensor,
                                   const TensorSplit& tensors) {
  if (!model.gated_mlp)
    throw MissingValue({model.name, 0, "/model_type"}, "the number of MLP matrices",
                       "say --model-key gated_mlp=true (gate, up and down) or gated_mlp=false (up and down)");
  const double element = usp::bytes_of(dtype), split = d(tensor), hidden = d(model.hidden);
  const double rows = tensors.sequence_parallel ? split : 1;
  LayerActivations a;
  a.checkpoint = element * hidden / rows;
  if (tensors.sequence_parallel && tensor > 1) a.gathered = element * hidden;
  const double pairs = model.blocks_per_layer / 2.0;  // of an attention and an MLP, one after another
  a.mlp_input = pairs * element * hidden / rows;
  a.alternate = pairs * element * hidden / rows;
  for (const std::size_t k : model.kinds_of(layer)) {
    const LayerKind& kind = model.kinds[k];
    const LayerActivations mixer = mixer_activations(model, kind, dtype, tensor);
    a.attention += kind.per_layer * mixer.attention;
    a.qkv += kind.per_layer * mixer.qkv;
    a.lse += kind.per_layer * mixer.lse;
    a.alternate += kind.per_layer * mixer.alternate;
  }
  a.norms = model.blocks_per_layer * element * hidden / rows;
  a.mlp = element * active_width(model, layer, tensors.expert_load) * (*model.gated_mlp ? 3 : 2) / split;
  if (!model.is_moe_layer(layer)) a.alternate += element * active_width(model, layer, 1) / split;
  // Tokens are copied once per chosen expert on the way in, and their outputs are kept for the weighted sum.
  if (model.is_moe_layer(layer))
    a.mlp += 2 * tensors.expert_load * element * hidden * d(model.moe->experts_per_token) /
             (tensors.expert_tensor ? 1 : split);
  return a;
}

LogitsBytes logits_bytes(std::int64_t tokens, std::int64_t vocab, const Workload& workload) {
  static_cast<void>(whole_bytes(16 * d(tokens) * d(vocab)));
  const std::int64_t count = tokens * vocab;
  LogitsBytes bytes{.logits = count * usp::bytes_of(workload.dtype)};
  if (workload.training) bytes.fp32_copy = bytes.gradient = 4 * count;
  return bytes;
}

}  // namespace usp
