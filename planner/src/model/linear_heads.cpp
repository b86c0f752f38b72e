// SPDX-License-Identifier: Apache-2.0
// Heads of layers with linear attention, by style.
#include "reading.hpp"

#include <fmt/format.h>

namespace usp {
namespace {

/// Keys of Bamba, Granite and Falcon-H1 (mamba_*) and of Nemotron-H.
LinearHeads mamba2_heads(Reading& r) {
  LinearHeads l{.style = LinearStyle::mamba2};
  l.value_heads = r.keys.need({"mamba_n_heads", "mamba_num_heads"}, 1, limit::heads);
  l.key_heads = r.keys.need({"mamba_n_groups", "n_groups"}, 1, limit::heads);
  l.key_dim = r.keys.need({"mamba_d_state", "ssm_state_size"}, 1, limit::heads);
  l.conv_kernel = r.keys.need({"mamba_d_conv", "conv_kernel"}, 1, limit::heads);
  const double expand =
      r.keys.number("mamba_expand", 0.01, 64).value_or(r.keys.number("expand", 0.01, 64).value_or(0));
  const auto inner = r.keys.integer({"mamba_d_ssm"}, 1, limit::width);
  for (const char* key : {"mamba_d_head", "mamba_head_dim"})
    if (r.keys.is_string(key) && r.keys.string(key) == "auto") {
      if (expand == 0 && !inner) r.keys.missing("mamba_expand", "add the key: the head dim follows from it");
      const double width = expand * static_cast<double>(r.model.hidden);
      l.value_dim = inner.value_or(static_cast<std::int64_t>(width)) / l.value_heads;
      return l;
    }
  l.value_dim = r.keys.need({"mamba_d_head", "mamba_head_dim"}, 1, limit::heads);
  if (l.value_heads % l.key_heads != 0)
    r.keys.fail("mamba_n_groups",
                fmt::format("{} heads cannot share {} groups evenly", l.value_heads, l.key_heads));
  if (inner && *inner != l.value_heads * l.value_dim)
    r.keys.fail("mamba_d_ssm",
                fmt::format("{} channels are not {} heads of {}", *inner, l.value_heads, l.value_dim));
  return l;
}

LinearHeads mamba_heads(Reading& r) {
  const double expand = r.keys.number("mamba_expand", 0.01, 64).value_or(2);
  LinearHeads l{.style = LinearStyle::mamba, .key_heads = 1, .value_dim = 1};
  l.value_heads = static_cast<std::int64_t>(expand * static_cast<double>(r.model.hidden));
  l.key_dim = r.keys.need({"mamba_d_state"}, 1, limit::heads);
  l.conv_kernel = r.keys.need({"mamba_d_conv"}, 1, limit::heads);
  static_cast<void>(r.keys.integer({"mamba_dt_rank"}, 1, limit::width));
  return l;
}

LinearHeads short_conv_heads(Reading& r) {
  const auto kernel = r.keys.need({"conv_L_cache"}, 1, limit::heads);
  return {LinearStyle::short_conv, r.model.hidden, r.model.hidden, 1, 1, kernel};
}

/// Griffin's recurrence: one number per channel; its gates are blocks of as many channels as a head has.
LinearHeads rg_lru_heads(Reading& r) {
  const auto heads = r.keys.need(query_names, 1, limit::heads);
  const auto width = r.keys.integer({"lru_width"}, 1, limit::width).value_or(r.model.hidden);
  if (width % heads != 0)
    r.keys.fail("lru_width", fmt::format("{} is not divisible by {} heads", width, heads));
  return {
      LinearStyle::rg_lru, heads, heads, 1, width / heads, r.keys.need({"conv1d_width"}, 1, limit::heads)};
}

/// Heads of Kimi delta attention, in an object of their own or beside the others.
LinearHeads kda_heads(Reading& r) {
  auto config = r.keys.object("linear_attn_config");
  if (!config && !r.keys.has({"linear_num_heads"}))
    r.keys.missing("linear_attn_config", "add it: it holds the heads of the linear layers");
  ConfigKeys& keys = config ? *config : r.keys;
  const auto heads = keys.need({config ? "num_heads" : "linear_num_heads"}, 1, limit::heads);
  const auto dim = keys.need({config ? "head_dim" : "linear_head_dim"}, 1, limit::heads);
  const auto kernel =
      keys.need({config ? "short_conv_kernel_size" : "linear_conv_kernel_dim"}, 1, limit::heads);
  return {LinearStyle::kda, heads, heads, dim, dim, kernel};
}

}  // namespace

LinearHeads read_linear_heads(Reading& r) {
  auto style = r.family != nullptr && r.family->linear ? *r.family->linear : LinearStyle::gated_delta;
  if (r.linear) style = *r.linear;
  if (style == LinearStyle::mamba2) return mamba2_heads(r);
  if (style == LinearStyle::mamba) return mamba_heads(r);
  if (style == LinearStyle::short_conv) return short_conv_heads(r);
  if (style == LinearStyle::rg_lru) return rg_lru_heads(r);
  if (style == LinearStyle::kda) return kda_heads(r);
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

}  // namespace usp
