// SPDX-License-Identifier: Apache-2.0
#include "weights.hpp"

#include "usp/base/error.hpp"

namespace usp::weights {
namespace {

Weights latent_attention(const Model& model, const LayerKind& kind) {
  const MlaRanks& mla = *model.mla;
  const bool bias = model.details && model.details->qkv_bias;
  const Wide hidden = model.hidden, q_width = Wide{kind.query_heads} * kind.head_dim_qk;
  const Wide latent = Wide{mla.kv_lora_rank} + mla.rope_head_dim;
  Weights w;
  if (mla.q_lora_rank) {
    w.matrices += (hidden + q_width) * *mla.q_lora_rank;
    w.vectors += Wide{*mla.q_lora_rank} * (bias ? 2 : 1);  // its norm
  } else {
    w.matrices += hidden * q_width;
    w.vectors += bias ? q_width : 0;
  }
  w.matrices +=
      hidden * latent + Wide{mla.kv_lora_rank} * kind.query_heads * (mla.nope_head_dim + kind.head_dim_v);
  w.matrices += Wide{kind.query_heads} * kind.head_dim_v * hidden;
  w.vectors += mla.kv_lora_rank + (bias ? latent : 0);
  if (model.details && model.details->output_bias) w.vectors += hidden;
  return w;
}

Weights plain_attention(const Model& model, const LayerKind& kind) {
  const Wide hidden = model.hidden;
  const Wide q = Wide{kind.query_heads} * kind.head_dim_qk * (kind.output_gate ? 2 : 1);
  const Wide k = kind.reuses_kv ? Wide{0} : Wide{kind.kv_heads} * kind.head_dim_qk;
  const Wide v = kind.reuses_kv || kind.shared_kv ? Wide{0} : Wide{kind.kv_heads} * kind.head_dim_v;
  Weights w;
  w.matrices = hidden * (q + k + v) + Wide{kind.query_heads} * kind.head_dim_v * hidden;
  if (kind.sinks) w.vectors += kind.query_heads;
  if (!model.details) return w;
  if (model.details->qkv_bias) w.vectors += q + k + v;
  if (model.details->output_bias) w.vectors += hidden;
  if (model.details->qk_norm == QkNorm::per_head)
    w.vectors += (kind.reuses_kv ? 1 : 2) * Wide{kind.head_dim_qk};
  if (model.details->qk_norm == QkNorm::projection)
    w.vectors += Wide{kind.query_heads + kind.kv_heads} * kind.head_dim_qk;
  return w;
}

/// Gated delta rule as in Qwen3-Next: q, k, v and the output gate z, two numbers per value head, a depthwise
/// convolution over q, k and v, an output norm per head.
Weights gated_delta(Wide hidden, const LinearHeads& l) {
  const Wide keys = Wide{l.key_heads} * l.key_dim, values = Wide{l.value_heads} * l.value_dim;
  return {.matrices = hidden * (2 * keys + 2 * values + 2 * Wide{l.value_heads}) + values * hidden +
                      (2 * keys + values) * l.conv_kernel,
          .vectors = 2 * Wide{l.value_heads} + l.value_dim};
}

/// Kimi delta attention: as above with a decay per channel and an output gate, both of low rank `key_dim`.
Weights kimi_delta(Wide hidden, const LinearHeads& l) {
  const Wide width = Wide{l.value_heads} * l.value_dim;
  const Wide low_rank = 2 * (hidden * l.value_dim + Wide{l.value_dim} * width);
  return {.matrices = 3 * hidden * width + low_rank + hidden * l.value_heads + width * hidden +
                      3 * width * l.conv_kernel,
          .vectors = l.value_heads + width + l.value_dim};
}

/// Lightning attention as in MiniMax-Text-01: q, k, v, an output gate, a norm over the projection.
Weights lightning(Wide hidden, const LinearHeads& l) {
  const Wide width = Wide{l.value_heads} * l.value_dim;
  return {.matrices = 5 * hidden * width, .vectors = width};
}

/// Mamba-2: z, x, B, C and dt in one projection, a convolution over x, B and C, a norm of the output, and A,
/// D and the bias of dt per head.
Weights mamba2(Wide hidden, const LinearHeads& l) {
  const Wide inner = Wide{l.value_heads} * l.value_dim, shared = 2 * Wide{l.key_heads} * l.key_dim;
  return {.matrices = hidden * (2 * inner + shared + l.value_heads) + inner * hidden +
                      (inner + shared) * l.conv_kernel,
          .vectors = inner + 3 * Wide{l.value_heads} + inner + shared};
}

/// Mamba-1: x and z in one projection, a convolution, then dt (of rank hidden / 16), B and C from x.
Weights mamba(Wide hidden, const LinearHeads& l) {
  const Wide inner = l.value_heads, rank = (hidden + 15) / 16;
  return {.matrices = hidden * 2 * inner + inner * l.conv_kernel + inner * (rank + 2 * Wide{l.key_dim}) +
                      rank * inner + inner * l.key_dim + inner * hidden,
          .vectors = 3 * inner + rank + 2 * Wide{l.key_dim}};
}

/// Short convolution of LFM2: two gates and the input in one projection, the kernel, one projection out.
Weights short_conv(Wide hidden, const LinearHeads& l) {
  return {.matrices = 4 * hidden * hidden + hidden * l.conv_kernel, .vectors = 0};
}

/// RG-LRU of Griffin: two projections in and one out with biases, a convolution, two gates of diagonal
/// blocks, one decay per channel.
Weights rg_lru(Wide hidden, const LinearHeads& l) {
  const Wide width = Wide{l.value_heads} * l.value_dim;
  return {.matrices = 3 * hidden * width + width * l.conv_kernel + 2 * width * l.value_dim,
          .vectors = 2 * width + hidden + width + 2 * width + width};
}

/// Queries from the latent one where there is one, a key, and a weight per head; a norm with shift on the
/// key.
Weights indexer(const Model& model, const SparseIndex& index) {
  const Wide from = model.mla && model.mla->q_lora_rank ? Wide{*model.mla->q_lora_rank} : Wide{model.hidden};
  return {
      .matrices = from * index.heads * index.head_dim + Wide{model.hidden} * (index.head_dim + index.heads),
      .vectors = 2 * Wide{index.head_dim}};
}

/// Gate and projection of a layer's own input with their norm, and its part of the projection that makes the
/// inputs of all layers from the embedding.
Weights layer_input(const Model& model) {
  return {.matrices = 3 * Wide{model.hidden} * model.layer_inputs->width, .vectors = model.hidden};
}

Weights mixer(const Model& model, const LayerKind& kind) {
  if (kind.kind == LayerMixer::none) return {};
  if (kind.has_softmax()) {
    Weights w = model.mla ? latent_attention(model, kind) : plain_attention(model, kind);
    if (!kind.sparse) return w;
    const Weights added = indexer(model, *kind.sparse);
    w.matrices += added.matrices;
    w.vectors += added.vectors;
    return w;
  }
  switch (kind.linear->style) {
    case LinearStyle::gated_delta:
      return gated_delta(model.hidden, *kind.linear);
    case LinearStyle::kda:
      return kimi_delta(model.hidden, *kind.linear);
    case LinearStyle::lightning:
      return lightning(model.hidden, *kind.linear);
    case LinearStyle::mamba:
      return mamba(model.hidden, *kind.linear);
    case LinearStyle::mamba2:
      return mamba2(model.hidden, *kind.linear);
    case LinearStyle::short_conv:
      return short_conv(model.hidden, *kind.linear);
    case LinearStyle::rg_lru:
      return rg_lru(model.hidden, *kind.linear);
  }
  throw InternalError("a linear style has no weights");
}

}  // namespace

Weights attention(const Model& model, const LayerKind& kind) {
  Weights w = mixer(model, kind);
  if (!model.layer_inputs) return w;
  const Weights added = layer_input(model);
  w.matrices += added.matrices;
  w.vectors += added.vectors;
  return w;
}

std::optional<Weights> mlp(const Model& model, std::int64_t width) {
  if (!model.gated_mlp) return std::nullopt;
  const Wide inner = *model.gated_mlp ? 2 : 1;
  Weights w;
  w.matrices = (inner + 1) * Wide{model.hidden} * width;
  if (model.details && model.details->mlp_bias) w.vectors = inner * width + model.hidden;
  return w;
}

Weights router(const Model& model) {
  const MixtureOfExperts& moe = *model.moe;
  return {.matrices = Wide{model.hidden} * moe.experts + (moe.shared_gate ? model.hidden : 0),
          .vectors = moe.router_bias ? moe.experts : 0};
}

}  // namespace usp::weights
