// SPDX-License-Identifier: Apache-2.0
#include "reading.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

namespace usp {
namespace {

using family::HeadDimRule;
using family::KvRule;

constexpr KeyNames kv_names = {"num_key_value_heads",   "num_kv_heads", "n_head_kv",
                               "multi_query_group_num", "n_kv_heads",   "num_attention_groups",
                               "num_query_groups"};
constexpr KeyNames head_dim_names = {"head_dim", "kv_channels", "attention_head_dim", "attention_key_size"};
constexpr KeyNames window_names = {"sliding_window", "sliding_window_size", "window_size"};

std::vector<std::int64_t> repeated(const Reading& r, std::int64_t value) {
  return std::vector<std::int64_t>(static_cast<std::size_t>(r.model.layers), value);
}

std::vector<std::int64_t> as_query_heads(Reading& r, const std::vector<std::int64_t>& query,
                                         const std::string& why) {
  r.derive(fmt::format("kv_heads = query_heads = {}: {}", query.front(), why));
  return query;
}

std::vector<std::int64_t> one_kv_head(Reading& r, const std::string& why) {
  r.derive("kv_heads = 1: " + why);
  return repeated(r, 1);
}

/// KV heads by the flags of the older families; they win over a number only where their code says so.
std::vector<std::int64_t> kv_heads_by_flag(Reading& r, const std::vector<std::int64_t>& query) {
  const std::string& name = r.model.family;
  if (r.family->kv == KvRule::group_num) {
    const auto flag = r.keys.boolean("multi_query_attention");
    if (!flag) r.keys.missing("multi_query_attention", "add it: it says whether multi_query_group_num holds");
    if (!*flag) return as_query_heads(r, query, "multi_query_attention is off");
    return repeated(r, r.keys.need({"multi_query_group_num", "num_key_value_heads"}, 1, limit::heads));
  }
  if (r.family->kv == KvRule::falcon && r.keys.boolean("new_decoder_architecture").value_or(false)) {
    if (const auto stated = r.keys.integer(kv_names, 1, limit::heads)) return repeated(r, *stated);
    return as_query_heads(r, query, "new_decoder_architecture without num_kv_heads");
  }
  const auto flag = r.keys.boolean("multi_query");
  if (!flag) return one_kv_head(r, name + " has multi_query on where the config does not say");
  if (*flag) return one_kv_head(r, "multi_query is on");
  return as_query_heads(r, query, "multi_query is off");
}

std::vector<std::int64_t> kv_heads(Reading& r, const std::vector<std::int64_t>& query) {
  if (!r.kv_heads.empty()) return r.kv_heads;
  // A hybrid's list has a 0 where a layer has no keys.
  for (const char* key : {"num_key_value_heads_per_layer", "num_key_value_heads", "num_kv_heads"})
    if (r.keys.is_array(key)) return r.keys.per_layer(key, r.model.layers, 0, limit::heads);
  if (auto config = r.keys.object("attn_config"))
    if (const auto stated = config->integer({"kv_n_heads"}, 1, limit::heads)) return repeated(r, *stated);
  const KvRule rule = r.family == nullptr ? KvRule::stated : r.family->kv;
  if (rule == KvRule::multi_query_flag || rule == KvRule::falcon || rule == KvRule::group_num)
    return kv_heads_by_flag(r, query);
  if (const auto stated = r.keys.integer(kv_names, 1, limit::heads)) return repeated(r, *stated);
  if (rule == KvRule::equals_heads)
    return as_query_heads(r, query,
                          fmt::format("the rule of {} where the config states no KV heads", r.model.family));
  return repeated(r, r.keys.need(kv_names, 1, limit::heads));
}

/// Latent attention expands to as many KV heads as query heads, keys of nope + rope wide.
void fill_mla(Reading& r, LayerKind& kind) {
  const MlaRanks& mla = *r.model.mla;
  kind.kv_heads = kind.query_heads;
  kind.head_dim_qk = mla.nope_head_dim + mla.rope_head_dim;
  kind.head_dim_v = r.keys.need({"v_head_dim"}, 1, limit::head_dim);
}

void read_mla(Reading& r, const std::vector<std::int64_t>& query) {
  const bool rule = r.family != nullptr && r.family->mla;
  if (!rule && !(r.keys.has({"kv_lora_rank"}) && r.keys.has({"qk_nope_head_dim"}))) return;
  MlaRanks mla;
  mla.q_lora_rank = r.keys.integer({"q_lora_rank"}, 1, limit::width);
  mla.kv_lora_rank = r.keys.need({"kv_lora_rank"}, 1, limit::width);
  mla.nope_head_dim = r.keys.need({"qk_nope_head_dim"}, 1, limit::head_dim);
  mla.rope_head_dim = r.keys.need({"qk_rope_head_dim"}, 0, limit::head_dim);
  r.model.mla = mla;
  r.derive(
      fmt::format("latent attention (MLA): head_dim_qk = qk_nope_head_dim + qk_rope_head_dim = {}, kv_heads "
                  "= query_heads once expanded",
                  mla.nope_head_dim + mla.rope_head_dim));
  const auto stated = r.keys.integer({"num_key_value_heads"}, 1, limit::heads);
  if (stated && *stated != query.front())
    r.keys.fail("num_key_value_heads",
                fmt::format("says {}, but latent attention expands to {} heads (num_attention_heads)",
                            *stated, query.front()));
}

/// Heads that differ from the main ones on one kind of layers.
struct OtherHeads {
  std::optional<std::int64_t> query, kv, head_dim, v_head_dim;
};

struct SoftmaxShape {
  std::vector<std::int64_t> query, kv;
  std::int64_t head_dim = 0;
  std::int64_t v_head_dim = 0;  ///< of values
  OtherHeads full, sliding;
  std::vector<OtherHeads> layers;  ///< of per_layer_config; empty without it
};

/// {"05": {"head_dim": 512}}: what differs in single layers (transformers 5).
std::vector<OtherHeads> heads_by_layer(Reading& r) {
  auto config = r.keys.object("per_layer_config");
  if (!config) return {};
  std::vector<OtherHeads> layers(static_cast<std::size_t>(r.model.layers));
  std::set<std::int64_t> seen;
  for (const auto& [name, value] : config->json().items()) {
    const bool number = !name.empty() && name.find_first_not_of("0123456789") == std::string::npos;
    const std::int64_t layer = number && name.size() < 6 ? std::stoll(name) : r.model.layers;
    if (layer >= r.model.layers) config->fail(name.c_str(), fmt::format("is no layer of {}", r.model.layers));
    auto own = config->object(name.c_str());
    if (!own) continue;
    if (!seen.insert(layer).second)
      config->fail(name.c_str(), fmt::format("layer {} is given twice; keep one", layer));
    OtherHeads& heads = layers[static_cast<std::size_t>(layer)];
    heads.query = own->integer({"num_attention_heads"}, 1, limit::heads);
    heads.kv = own->integer({"num_key_value_heads"}, 1, limit::heads);
    heads.head_dim = own->integer({"head_dim"}, 1, limit::head_dim);
    heads.v_head_dim = own->integer({"v_head_dim"}, 1, limit::head_dim);
    for (const auto& [key, unread] : own->json().items())
      if (own->read().count(key) == 0)
        own->fail(key.c_str(), "what it changes in a single layer is not known");
  }
  return layers;
}

/// `single` where it says so, else `kind`.
OtherHeads over(const OtherHeads& kind, const OtherHeads& single) {
  const auto first = [](const auto& a, const auto& b) { return a ? a : b; };
  return {first(single.query, kind.query), first(single.kv, kind.kv), first(single.head_dim, kind.head_dim),
          first(single.v_head_dim, kind.v_head_dim)};
}

/// Sliding layers beside full ones: `global_*` are the full layers' (Gemma 4), `swa_*` (MiMo-V2) and
/// attention_other_setting (Step 3.5) the sliding ones'.
void read_other_heads(Reading& r, SoftmaxShape& shape) {
  shape.full.head_dim = r.keys.integer({"global_head_dim"}, 1, limit::head_dim);
  shape.full.kv = r.keys.integer({"num_global_key_value_heads"}, 1, limit::heads);
  shape.sliding.query = r.keys.integer({"swa_num_attention_heads"}, 1, limit::heads);
  shape.sliding.kv = r.keys.integer({"swa_num_key_value_heads"}, 1, limit::heads);
  shape.sliding.head_dim = r.keys.integer({"swa_head_dim"}, 1, limit::head_dim);
  shape.sliding.v_head_dim = r.keys.integer({"swa_v_head_dim"}, 1, limit::head_dim);
  const std::int64_t factor = r.family == nullptr ? 1 : r.family->sliding_kv_factor;
  if (factor > 1 && !shape.sliding.kv) {
    shape.sliding.kv = factor * shape.kv.front();
    r.derive(fmt::format("kv_heads of sliding layers = {}: {} times those of full ones, the rule of {}",
                         *shape.sliding.kv, factor, r.model.family));
  }
  auto other = r.keys.object("attention_other_setting");
  if (!other) return;
  if (other->string("attention_type").value_or("") != "sliding_attention")
    r.keys.fail("attention_other_setting", "is known for attention_type sliding_attention alone");
  shape.sliding.query = other->need({"num_attention_heads"}, 1, limit::heads);
  shape.sliding.kv = other->need({"num_attention_groups", "num_key_value_heads"}, 1, limit::heads);
  shape.sliding.head_dim = other->integer({"head_dim"}, 1, limit::head_dim);
}

SoftmaxShape softmax_shape(Reading& r, bool has_sliding) {
  SoftmaxShape shape;
  shape.query = query_heads(r);
  read_mla(r, shape.query);
  if (r.model.mla) return shape;
  shape.kv = kv_heads(r, shape.query);
  shape.head_dim = head_dim(r, shape.query);
  shape.v_head_dim = r.keys.integer({"v_head_dim"}, 1, limit::head_dim).value_or(shape.head_dim);
  if (has_sliding) read_other_heads(r, shape);
  shape.layers = heads_by_layer(r);
  return shape;
}

/// Keys per row of cross layers: the tokens of one image, of whole tiles and one class token each
/// (Llama 3.2).
std::int64_t cross_tokens(Reading& r) {
  if (const auto stated = r.keys.integer({"cross_tokens"}, 1, limit::window)) return *stated;
  auto vision = r.top.object("vision_config");
  const auto number = [&](const char* key) {
    return vision ? vision->integer({key}, 1, limit::width).value_or(0) : 0;
  };
  const std::int64_t size = number("image_size"), patch = number("patch_size"),
                     tiles = number("max_num_tiles");
  if (patch == 0 || tiles == 0 || tiles > limit::layers || size < patch)
    r.keys.missing(
        "cross_tokens",
        "cross-attention layers see the tokens of another sequence; say how many, e.g. --model-key "
        "cross_tokens=6404");
  const std::int64_t side = size / patch;
  if (side > 4096)
    r.keys.fail("cross_tokens", "an image of more than 4096 x 4096 patches; is the size right?");
  const std::int64_t tokens = tiles * (side * side + 1);
  r.note(fmt::format(
      "cross-attention layers see {} tokens per row: one image of {} tiles (--model-key cross_tokens=N "
      "for others)",
      tokens, tiles));
  return tokens;
}

SparseIndex sparse_index(Reading& r) {
  const SparseIndex index{r.keys.need({"index_topk"}, 1, limit::window),
                          r.keys.need({"index_n_heads"}, 1, limit::heads),
                          r.keys.need({"index_head_dim"}, 1, limit::head_dim)};
  return index;
}

/// Heads and widths of a layer without latent attention.
void fill_heads(Reading& r, const SoftmaxShape& shape, std::size_t layer, LayerKind& kind) {
  const bool full = kind.kind == LayerMixer::softmax;
  const OtherHeads of_kind = full                               ? shape.full
                             : kind.kind == LayerMixer::sliding ? shape.sliding
                                                                : OtherHeads{};
  const OtherHeads other = over(of_kind, shape.layers.empty() ? OtherHeads{} : shape.layers[layer]);
  kind.query_heads = other.query.value_or(shape.query[layer]);
  kind.kv_heads = other.kv.value_or(shape.kv[layer]);
  kind.head_dim_qk = other.head_dim.value_or(shape.head_dim);
  kind.head_dim_v = other.v_head_dim.value_or(
      other.head_dim && shape.v_head_dim == shape.head_dim ? *other.head_dim : shape.v_head_dim);
  kind.shared_kv = full && r.keys.boolean("attention_k_eq_v").value_or(false);
}

/// One learnt logit per head: a rule of the family, or a flag per kind of layers (MiMo-V2).
bool has_sinks(Reading& r, LayerMixer mixer) {
  const auto flag = r.keys.boolean(mixer == LayerMixer::sliding ? "add_swa_attention_sink_bias"
                                                                : "add_full_attention_sink_bias");
  return flag.value_or(r.family != nullptr && r.family->sinks);
}

/// What the config says of the scale of q.k: Gemma's query_pre_attn_scalar, Granite's attention_multiplier.
std::optional<double> score_scale(Reading& r, const LayerKind& kind) {
  std::optional<double> scale = r.keys.number("attention_multiplier", 1e-9, 1e9);
  if (const auto scalar = r.keys.number("query_pre_attn_scalar", 1e-6, 1e9)) scale = 1 / std::sqrt(*scalar);
  const double usual = 1 / std::sqrt(static_cast<double>(kind.head_dim_qk));
  if (scale && std::abs(*scale / usual - 1) < 1e-9) scale.reset();
  return scale;
}

/// A rule of the family (BLOOM, MPT), or a flag (Falcon).
bool has_alibi(Reading& r) {
  std::optional<bool> flag = r.keys.boolean("alibi");
  if (auto config = r.keys.object("attn_config"))
    if (const auto nested = config->boolean("alibi")) flag = nested;
  return flag.value_or(r.family != nullptr && r.family->alibi);
}

LayerKind softmax_kind(Reading& r, LayerMixer mixer, const SoftmaxShape& shape, std::size_t layer) {
  LayerKind kind;
  kind.kind = mixer;
  kind.query_heads = shape.query[layer];
  if (r.model.mla)
    fill_mla(r, kind);
  else
    fill_heads(r, shape, layer, kind);
  if (kind.kv_heads == 0)
    r.keys.fail("num_key_value_heads", fmt::format("has 0 for layer {}, which has attention", layer));
  if (kind.query_heads % kind.kv_heads != 0)
    r.keys.fail("num_attention_heads", fmt::format("{} query heads cannot share {} KV heads evenly",
                                                   kind.query_heads, kind.kv_heads));
  if (mixer == LayerMixer::sliding) {
    if (r.family != nullptr && !r.family->attention_window.empty())
      kind.window = r.keys.integer({std::string(r.family->attention_window).c_str()}, 1, limit::window);
    else
      kind.window = r.keys.integer(window_names, 1, limit::window);
    if (!kind.window && r.family != nullptr) kind.window = r.family->default_window;
    if (!kind.window) kind.window = r.keys.need(window_names, 1, limit::window);
  }
  if (mixer == LayerMixer::chunked) kind.window = r.keys.need({"attention_chunk_size"}, 1, limit::window);
  if (mixer == LayerMixer::sparse) kind.sparse = sparse_index(r);
  if (mixer == LayerMixer::cross) kind.cross_tokens = cross_tokens(r);
  kind.softcap = r.keys.number("attn_logit_softcapping", 1e-6, 1e9);
  kind.scale = score_scale(r, kind);
  kind.alibi = has_alibi(r);
  kind.sinks = has_sinks(r, mixer);
  kind.output_gate =
      r.family != nullptr && r.family->output_gate && r.keys.boolean("attn_output_gate").value_or(true);
  return kind;
}

/// Layers from this one on use the keys and values of the layer of their kind before it (Gemma 4).
std::int64_t first_reusing_layer(Reading& r, const std::vector<std::vector<LayerMixer>>& mixers) {
  if (r.family == nullptr || !r.family->layer_inputs) return r.model.layers;
  const auto count = r.keys.integer({"num_kv_shared_layers"}, 0, r.model.layers).value_or(0);
  if (count > 0)
    r.derive(
        fmt::format("num_kv_shared_layers: the last {} layers project no keys and values; they exchange "
                    "those of an earlier layer again",
                    count));
  const auto first = mixers.begin() + static_cast<std::ptrdiff_t>(r.model.layers - count);
  for (auto layer = first; layer != mixers.end(); ++layer)
    if (std::find(mixers.begin(), first, *layer) == first)
      r.keys.fail("num_kv_shared_layers",
                  fmt::format("{} leaves no {} layer before the last {} whose keys and values they could use",
                              count, mixer_name(layer->front()), count));
  return r.model.layers - count;
}

/// An embedding per layer, and twice the width of MLP where keys and values are reused.
void read_layer_inputs(Reading& r, std::int64_t first_reusing) {
  if (r.family == nullptr || !r.family->layer_inputs) return;
  const auto width = r.keys.integer({"hidden_size_per_layer_input"}, 0, limit::width).value_or(0);
  const auto vocab = r.keys.integer({"vocab_size_per_layer_input"}, 1, limit::vocab);
  if (width > 0) {
    r.model.layer_inputs = LayerInputs{width, vocab ? *vocab : r.model.vocab.value_or(0)};
    r.note("the activations of the layers' own inputs are not counted");
  }
  if (!r.keys.boolean("use_double_wide_mlp").value_or(false)) return;
  const auto stated = r.keys.need(mlp_width_names, 1, limit::width);
  for (std::int64_t i = 0; i < r.model.layers; ++i)
    r.widths.push_back(i < first_reusing ? stated : 2 * stated);
}

}  // namespace

std::vector<std::int64_t> query_heads(Reading& r) {
  for (const char* key : {"num_attention_heads_per_layer", "num_attention_heads", "num_query_heads"})
    if (r.keys.is_array(key)) {
      r.keys.mark_read("num_attention_heads");
      return r.keys.per_layer(key, r.model.layers, 1, limit::heads);
    }
  return repeated(r, r.keys.need(query_names, 1, limit::heads));
}

std::int64_t head_dim(Reading& r, const std::vector<std::int64_t>& query) {
  if (const auto stated = r.keys.integer(head_dim_names, 1, limit::head_dim)) return *stated;
  if (r.family != nullptr && r.family->head_dim == HeadDimRule::stated)
    return r.keys.need(head_dim_names, 1, limit::head_dim);
  const std::int64_t heads = query.front();
  if (r.model.hidden % heads != 0 ||
      std::any_of(query.begin(), query.end(), [&](auto q) { return q != heads; }))
    r.keys.missing(
        "head_dim",
        fmt::format(
            "hidden_size {} is not divisible by {} heads, so the rule hidden / heads gives none; add it",
            r.model.hidden, heads));
  r.derive(r.family == nullptr
               ? fmt::format(
                     "head_dim = hidden / heads = {}: assumed, as decoders do that state none (--model-key "
                     "head_dim=N for another)",
                     r.model.hidden / heads)
               : fmt::format("head_dim = hidden / heads = {}: the rule of {}", r.model.hidden / heads,
                             r.model.family));
  return r.model.hidden / heads;
}

namespace {

/// By mixer, query heads, KV heads, head dim, reuse of keys and values; the other fields follow from these.
using KindsByShape =
    std::map<std::tuple<LayerMixer, std::int64_t, std::int64_t, std::int64_t, bool>, std::size_t>;

/// All layers have as many mixers of a kind as the first that has it.
void add_to_kinds(Model& model, KindsByShape& known, LayerKind kind, int layer) {
  const auto [at, fresh] =
      known.emplace(std::tuple{kind.kind, kind.query_heads, kind.kv_heads, kind.head_dim_qk, kind.reuses_kv},
                    model.kinds.size());
  if (fresh) model.kinds.push_back(std::move(kind));
  LayerKind& same = model.kinds[at->second];
  if (same.layers.empty() || same.layers.back() != layer)
    same.layers.push_back(layer);
  else if (same.layers.size() == 1)
    ++same.per_layer;
}

}  // namespace

void read_layers(Reading& r) {
  const auto layers = read_mixers(r);
  std::set<LayerMixer> all;
  for (const auto& mixers : layers) all.insert(mixers.begin(), mixers.end());
  const auto present = [&](LayerMixer m) { return all.count(m) > 0; };
  const bool no_softmax = std::all_of(
      all.begin(), all.end(), [](LayerMixer m) { return m == LayerMixer::linear || m == LayerMixer::none; });
  std::optional<LinearHeads> linear;
  if (present(LayerMixer::linear)) linear = read_linear_heads(r);
  const SoftmaxShape shape = no_softmax ? SoftmaxShape{} : softmax_shape(r, present(LayerMixer::sliding));
  const std::int64_t first_reusing = first_reusing_layer(r, layers);
  read_layer_inputs(r, first_reusing);
  KindsByShape known;
  for (std::size_t i = 0; i < layers.size(); ++i)
    for (const LayerMixer mixer : layers[i]) {
      LayerKind kind;
      kind.kind = mixer;
      if (mixer == LayerMixer::linear) {
        kind.linear = linear;
      } else if (mixer != LayerMixer::none) {
        kind = softmax_kind(r, mixer, shape, i);
        kind.reuses_kv = static_cast<std::int64_t>(i) >= first_reusing;
      }
      add_to_kinds(r.model, known, std::move(kind), static_cast<int>(i));
    }
  if (present(LayerMixer::sparse))
    r.note(fmt::format(
        "sparse-index attention: a query sees the {} keys that an indexer picks; priced by keys per "
        "query, with all keys exchanged and the indexer's scores of all earlier tokens",
        r.keys.need({"index_topk"}, 1, limit::window)));
}

}  // namespace usp
