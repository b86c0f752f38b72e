// SPDX-License-Identifier: Apache-2.0
#include "reading.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace usp {
namespace {

using family::HeadDimRule;
using family::KvRule;

constexpr KeyNames query_names = {"num_attention_heads", "n_head", "n_heads", "num_heads"};
constexpr KeyNames kv_names = {"num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"};
constexpr KeyNames head_dim_names = {"head_dim", "kv_channels"};

std::vector<std::int64_t> repeated(const Reading& r, std::int64_t value) {
  return std::vector<std::int64_t>(static_cast<std::size_t>(r.model.layers), value);
}

std::vector<std::int64_t> query_heads(Reading& r) {
  if (r.keys.is_array("num_attention_heads"))
    return r.keys.per_layer("num_attention_heads", r.model.layers, 1, limit::heads);
  return repeated(r, r.keys.need(query_names, 1, limit::heads));
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
  for (const char* key : {"num_key_value_heads_per_layer", "num_key_value_heads"})
    if (r.keys.is_array(key)) return r.keys.per_layer(key, r.model.layers, 1, limit::heads);
  const KvRule rule = r.family == nullptr ? KvRule::stated : r.family->kv;
  if (rule == KvRule::multi_query_flag || rule == KvRule::falcon || rule == KvRule::group_num)
    return kv_heads_by_flag(r, query);
  if (const auto stated = r.keys.integer(kv_names, 1, limit::heads)) return repeated(r, *stated);
  if (rule == KvRule::equals_heads)
    return as_query_heads(r, query,
                          fmt::format("the rule of {} where the config states no KV heads", r.model.family));
  return repeated(r, r.keys.need(kv_names, 1, limit::heads));
}

std::int64_t head_dim(Reading& r, const std::vector<std::int64_t>& query) {
  if (const auto stated = r.keys.integer(head_dim_names, 1, limit::head_dim)) return *stated;
  if (r.family == nullptr || r.family->head_dim == HeadDimRule::stated)
    return r.keys.need(head_dim_names, 1, limit::head_dim);
  const std::int64_t heads = query.front();
  if (r.model.hidden % heads != 0 ||
      std::any_of(query.begin(), query.end(), [&](auto q) { return q != heads; }))
    r.keys.missing(
        "head_dim",
        fmt::format(
            "hidden_size {} is not divisible by {} heads, so the rule hidden / heads gives none; add it",
            r.model.hidden, heads));
  r.derive(
      fmt::format("head_dim = hidden / heads = {}: the rule of {}", r.model.hidden / heads, r.model.family));
  return r.model.hidden / heads;
}

LinearHeads linear_heads(Reading& r) {
  const auto style = r.family != nullptr && r.family->linear ? *r.family->linear : LinearStyle::gated_delta;
  if (style == LinearStyle::kda) {
    auto config = r.keys.object("linear_attn_config");
    if (!config) r.keys.missing("linear_attn_config", "add it: it holds the heads of the linear layers");
    const auto heads = config->need({"num_heads"}, 1, limit::heads);
    const auto dim = config->need({"head_dim"}, 1, limit::heads);
    return {style, heads, heads, dim, dim, config->need({"short_conv_kernel_size"}, 1, limit::heads)};
  }
  if (style == LinearStyle::lightning) {
    const auto heads = query_heads(r);
    const auto dim = head_dim(r, heads);
    r.derive("lightning attention has the query heads of the softmax layers for keys and values");
    return {style, heads.front(), heads.front(), dim, dim, 0};
  }
  return {style,
          r.keys.need({"linear_num_key_heads"}, 1, limit::heads),
          r.keys.need({"linear_num_value_heads"}, 1, limit::heads),
          r.keys.need({"linear_key_head_dim"}, 1, limit::heads),
          r.keys.need({"linear_value_head_dim"}, 1, limit::heads),
          r.keys.need({"linear_conv_kernel_dim"}, 1, limit::heads)};
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

struct SoftmaxShape {
  std::vector<std::int64_t> query, kv;
  std::int64_t head_dim = 0;
  std::optional<std::int64_t> global_head_dim, global_kv;  ///< of full layers beside sliding ones (Gemma 4)
};

SoftmaxShape softmax_shape(Reading& r, bool has_sliding) {
  SoftmaxShape shape;
  shape.query = query_heads(r);
  read_mla(r, shape.query);
  if (r.model.mla) return shape;
  shape.kv = kv_heads(r, shape.query);
  shape.head_dim = head_dim(r, shape.query);
  if (has_sliding) {
    shape.global_head_dim = r.keys.integer({"global_head_dim"}, 1, limit::head_dim);
    shape.global_kv = r.keys.integer({"num_global_key_value_heads"}, 1, limit::heads);
  }
  return shape;
}

LayerKind softmax_kind(Reading& r, LayerMixer mixer, const SoftmaxShape& shape, std::size_t layer) {
  LayerKind kind;
  kind.kind = mixer;
  kind.query_heads = shape.query[layer];
  if (r.model.mla) {
    fill_mla(r, kind);
  } else {
    const bool global = mixer == LayerMixer::softmax;
    kind.kv_heads = global && shape.global_kv ? *shape.global_kv : shape.kv[layer];
    kind.head_dim_qk = kind.head_dim_v =
        global && shape.global_head_dim ? *shape.global_head_dim : shape.head_dim;
    kind.shared_kv = global && r.keys.boolean("attention_k_eq_v").value_or(false);
  }
  if (kind.query_heads % kind.kv_heads != 0)
    r.keys.fail("num_attention_heads", fmt::format("{} query heads cannot share {} KV heads evenly",
                                                   kind.query_heads, kind.kv_heads));
  if (mixer == LayerMixer::sliding) {
    kind.window = r.keys.integer({"sliding_window"}, 1, limit::window);
    if (!kind.window && r.family != nullptr) kind.window = r.family->default_window;
    if (!kind.window) kind.window = r.keys.need({"sliding_window"}, 1, limit::window);
  }
  if (mixer == LayerMixer::chunked) kind.window = r.keys.need({"attention_chunk_size"}, 1, limit::window);
  kind.softcap = r.keys.number("attn_logit_softcapping", 1e-6, 1e9);
  kind.sinks = r.family != nullptr && r.family->sinks;
  kind.output_gate = r.family != nullptr && r.family->linear == LinearStyle::gated_delta &&
                     r.keys.boolean("attn_output_gate").value_or(true);
  return kind;
}

}  // namespace

void read_layers(Reading& r) {
  const auto mixers = read_mixers(r);
  const auto present = [&](LayerMixer m) {
    return std::find(mixers.begin(), mixers.end(), m) != mixers.end();
  };
  const bool all_linear =
      std::all_of(mixers.begin(), mixers.end(), [](LayerMixer m) { return m == LayerMixer::linear; });
  std::optional<LinearHeads> linear;
  if (present(LayerMixer::linear)) linear = linear_heads(r);
  const SoftmaxShape shape = all_linear ? SoftmaxShape{} : softmax_shape(r, present(LayerMixer::sliding));
  using Key = std::tuple<LayerMixer, std::int64_t, std::int64_t>;
  std::map<Key, std::size_t> known;  // the other fields follow from these
  for (std::size_t i = 0; i < mixers.size(); ++i) {
    LayerKind kind;
    if (mixers[i] == LayerMixer::linear) {
      kind.kind = LayerMixer::linear;
      kind.linear = linear;
    } else {
      kind = softmax_kind(r, mixers[i], shape, i);
    }
    const auto [at, fresh] =
        known.emplace(Key{kind.kind, kind.query_heads, kind.kv_heads}, r.model.kinds.size());
    if (fresh) r.model.kinds.push_back(kind);
    r.model.kinds[at->second].layers.push_back(static_cast<int>(i));
  }
}

}  // namespace usp
