// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace usp {

/// How a layer mixes tokens. All but `linear` and `none` compute softmax attention and differ in what a query
/// sees.
enum class LayerMixer {
  softmax,  ///< all earlier tokens (all tokens when not causal)
  sliding,  ///< the `window` latest tokens
  chunked,  ///< the tokens of its own chunk of `window` tokens
  sparse,   ///< the earlier tokens that an indexer picks for it (SparseIndex)
  cross,    ///< all tokens of another sequence (`cross_tokens`)
  linear,   ///< a recurrent state instead of keys
  none,     ///< nothing: the block holds an MLP alone
};

/// Which linear attention: they differ in their projections, so in parameters and FLOPs.
enum class LinearStyle {
  gated_delta,  ///< gated delta rule (Qwen3-Next, Qwen3.5)
  kda,          ///< Kimi delta attention
  lightning,    ///< MiniMax lightning attention
  mamba,        ///< selective state space of Mamba-1: one head per channel
  mamba2,       ///< selective state space of Mamba-2: `key_heads` are its groups of B and C
  rg_lru,       ///< real-gated linear recurrence (Griffin): `key_dim` 1, heads are the blocks of its gates
  short_conv,   ///< gated short convolution (LFM2): no state beyond its kernel
};

/// Heads of a linear-attention layer; queries have as many heads as keys.
struct LinearHeads {
  LinearStyle style = LinearStyle::gated_delta;
  std::int64_t key_heads = 0;
  std::int64_t value_heads = 0;
  std::int64_t key_dim = 0;      ///< per head
  std::int64_t value_dim = 0;    ///< per head
  std::int64_t conv_kernel = 0;  ///< width of the short causal convolution; 0: none
};

/// The indexer of sparse attention (DeepSeek-V3.2): `heads` small queries score all earlier tokens against
/// one small key each, and attention sees the `topk` best of them.
struct SparseIndex {
  std::int64_t topk = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
};

/// Layers that are alike. The softmax fields are 0 on layers without softmax, `linear` is empty on the
/// others.
struct LayerKind {
  LayerMixer kind = LayerMixer::softmax;
  std::vector<int> layers;  ///< 0-based, ascending
  int per_layer = 1;        ///< mixers of this kind in each of them (LongCat-Flash: 2)
  std::int64_t query_heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim_qk = 0;
  std::int64_t head_dim_v = 0;
  std::optional<std::int64_t> window;  ///< tokens; of sliding and chunked layers
  std::optional<double> scale;         ///< of q.k; empty: 1 / sqrt(head_dim_qk)
  bool alibi = false;                  ///< a slope per query head times the distance joins the logits
  std::optional<double> softcap;       ///< logits become softcap * tanh(logits / softcap)
  bool sinks = false;                  ///< one learnt logit per head joins the softmax denominator
  bool output_gate = false;            ///< the query projection makes a gate of its own size for the output
  bool shared_kv = false;              ///< values are the keys: no value projection
  bool reuses_kv = false;              ///< keys and values of an earlier layer: no projections of them
  std::optional<SparseIndex> sparse;   ///< of sparse layers
  std::int64_t cross_tokens = 0;       ///< keys per row of cross layers
  std::optional<LinearHeads> linear;

  /// In one pass over the model.
  [[nodiscard]] std::int64_t calls() const { return static_cast<std::int64_t>(layers.size()) * per_layer; }
  [[nodiscard]] bool is_linear() const { return kind == LayerMixer::linear; }
  [[nodiscard]] bool has_softmax() const { return kind != LayerMixer::linear && kind != LayerMixer::none; }
};

/// Multi-head latent attention. The expanded heads are in LayerKind: head_dim_qk = nope + rope.
struct MlaRanks {
  std::optional<std::int64_t> q_lora_rank;  ///< empty: queries are projected directly
  std::int64_t kv_lora_rank = 0;
  std::int64_t nope_head_dim = 0;
  std::int64_t rope_head_dim = 0;
};

struct MixtureOfExperts {
  std::int64_t experts = 0;
  std::int64_t experts_per_token = 0;
  std::int64_t moe_intermediate = 0;     ///< width of one routed expert
  std::int64_t shared_experts = 0;       ///< 0: none
  std::int64_t shared_intermediate = 0;  ///< width of all shared experts together
  bool shared_gate = false;              ///< a learnt scalar gate on the shared expert (Qwen2-MoE and after)
  bool router_bias = false;              ///< one learnt or tuned bias per expert
  std::vector<int> layers;               ///< 0-based; the other layers are dense
};

/// An embedding of its own for each layer, gated into the layer's output (Gemma 4's small models).
struct LayerInputs {
  std::int64_t width = 0;  ///< of one layer
  std::int64_t vocab = 0;
};

enum class QkNorm {
  none,
  per_head,    ///< one weight per head dimension, shared by the heads
  projection,  ///< one weight per element of the whole projection
};

/// Details that only matter for counting parameters. Known by family; empty for an unknown one.
struct ParameterDetails {
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;
  int norms_per_layer = 2;  ///< normalisations over the hidden size in one layer
  int extra_norms = 1;      ///< outside the layers (the final one)
  int norm_vectors = 1;     ///< 1: scale (RMSNorm); 2: scale and shift (LayerNorm); 0: none learnt
  QkNorm qk_norm = QkNorm::none;
  std::int64_t learnt_positions = 0;  ///< rows of a learnt position table
};

/// A decoder-only language model (of a multimodal model: its language part). Counts are 64-bit.
struct Model {
  std::string name;
  std::string family;  ///< Hugging Face model_type
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::optional<std::int64_t> vocab;
  std::optional<bool> tied_embeddings;
  /// Together they name every layer: once, or once for each kind of mixer in it (Falcon-H1: attention beside
  /// Mamba).
  std::vector<LayerKind> kinds;
  /// Residual blocks of a layer, each with a sum of its own: attention and MLP, or more (LongCat-Flash).
  int blocks_per_layer = 2;
  std::optional<std::int64_t> dense_intermediate;  ///< MLP width of the dense layers
  std::vector<std::int64_t> mlp_widths;  ///< where dense layers differ: of each layer; 0: it has no MLP
  std::optional<bool> gated_mlp;         ///< gate, up and down (3 matrices) or up and down (2)
  std::optional<MixtureOfExperts> moe;
  std::optional<MlaRanks> mla;  ///< of the softmax layers
  std::optional<LayerInputs> layer_inputs;
  std::optional<ParameterDetails> details;
  std::vector<std::string> derived;  ///< what the architecture's rules supplied, one sentence each
  std::vector<std::string> notes;    ///< what the reader leaves out or wants known

  /// Indices into `kinds` of the mixers of a layer, ascending. Throws InternalError when no kind names it.
  [[nodiscard]] std::vector<std::size_t> kinds_of(int layer) const;
  /// Layers with softmax attention.
  [[nodiscard]] std::int64_t attention_layers() const;
  [[nodiscard]] bool is_moe_layer(int layer) const;
  /// MLP width of a dense layer, 0 where it has no MLP; empty where no width is stated.
  [[nodiscard]] std::optional<std::int64_t> mlp_width(int layer) const;
};

/// Layers of the same kinds with the same MLP: what holds for one of them holds for all.
struct AlikeLayers {
  int layer = 0;  ///< one of them
  std::int64_t count = 0;
};
/// Groups the layers [first, last). Throws InternalError when no kind names one.
[[nodiscard]] std::vector<AlikeLayers> alike_layers(const Model& model, int first, int last);

/// Ulysses degrees U that split every softmax layer evenly: Hq % U == 0 and (Hkv % U == 0 or U % Hkv == 0).
/// Ascending; empty without softmax layers.
[[nodiscard]] std::vector<std::int64_t> even_ulysses_degrees(const Model& model);

/// The heads of linear layers can be split over so many ranks: value heads divide, and key heads divide or,
/// as groups that Mamba shares between heads, are copied.
[[nodiscard]] bool splits_linear_heads(const LinearHeads& heads, std::int64_t degree);
/// Ulysses degrees that split every linear layer so; empty without linear layers.
[[nodiscard]] std::vector<std::int64_t> even_ulysses_degrees_linear(const Model& model);

/// "28", or "28 x 2" where each of the layers has two mixers of the kind.
[[nodiscard]] std::string layer_count_text(const LayerKind& kind);
[[nodiscard]] std::string_view mixer_name(LayerMixer mixer);  ///< the name of the enumerator
[[nodiscard]] std::string_view linear_style_name(LinearStyle style);

}  // namespace usp
