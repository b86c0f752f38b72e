// SPDX-License-Identifier: Apache-2.0
#include "reading.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace usp {
namespace {

using family::MlpWidthRule;
using family::MoeRule;

constexpr KeyNames width_names = {"intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim"};
constexpr KeyNames expert_names = {"num_experts", "n_routed_experts", "num_local_experts"};
constexpr KeyNames top_k_names = {"num_experts_per_tok", "num_experts_per_token", "experts_per_token"};
constexpr std::int64_t max_experts = 1 << 20;

std::vector<int> layers_where(const Reading& r, const std::function<bool(std::int64_t)>& is_moe) {
  std::vector<int> layers;
  for (std::int64_t i = 0; i < r.model.layers; ++i)
    if (is_moe(i)) layers.push_back(static_cast<int>(i));
  return layers;
}

std::vector<int> moe_layers_of_qwen(Reading& r) {
  const std::int64_t step = r.keys.integer({"decoder_sparse_step"}, 1, limit::layers).value_or(1);
  const auto dense =
      r.keys.integers("mlp_only_layers", 0, r.model.layers - 1).value_or(std::vector<std::int64_t>{});
  return layers_where(r, [&](std::int64_t i) {
    return (i + 1) % step == 0 && std::find(dense.begin(), dense.end(), i) == dense.end();
  });
}

std::vector<int> moe_layers_of_deepseek(Reading& r) {
  if (r.keys.is_array("moe_layer_freq")) {
    const auto flags = r.keys.per_layer("moe_layer_freq", r.model.layers, 0, 1);
    return layers_where(r, [&](std::int64_t i) { return flags[static_cast<std::size_t>(i)] == 1; });
  }
  const std::int64_t dense = r.keys.need({"first_k_dense_replace"}, 0, limit::layers);
  const std::int64_t every = r.keys.integer({"moe_layer_freq"}, 1, limit::layers).value_or(1);
  return layers_where(r, [&](std::int64_t i) { return i >= dense && i % every == 0; });
}

std::vector<int> moe_layers_of_llama4(Reading& r) {
  if (const auto listed = r.keys.integers("moe_layers", 0, r.model.layers - 1))
    return layers_where(
        r, [&](std::int64_t i) { return std::find(listed->begin(), listed->end(), i) != listed->end(); });
  const std::int64_t step = r.keys.need({"interleave_moe_layer_step"}, 1, limit::layers);
  return layers_where(r, [&](std::int64_t i) { return (i + 1) % step == 0; });
}

void read_shared_experts(Reading& r, MixtureOfExperts& moe) {
  const auto width =
      r.keys.integer({"shared_expert_intermediate_size", "shared_intermediate_size"}, 0, limit::width);
  if (width && *width > 0) {
    moe.shared_experts = 1;
    moe.shared_intermediate = *width;
    moe.shared_gate = r.family->moe == MoeRule::qwen_step;
  } else if (const auto count = r.keys.integer({"n_shared_experts", "num_shared_experts"}, 0, max_experts)) {
    moe.shared_experts = *count;
    moe.shared_intermediate = *count * moe.moe_intermediate;
  } else if (r.family->moe == MoeRule::llama4) {
    moe.shared_experts = 1;
    moe.shared_intermediate = moe.moe_intermediate;
    r.derive("one shared expert as wide as a routed one: the rule of " + r.model.family);
  }
}

bool has_router_bias(Reading& r) {
  if (const auto stated = r.keys.boolean("use_routing_bias")) return *stated;
  const std::string& name = r.model.family;
  return r.keys.string("topk_method").value_or("") == "noaux_tc" || name == "glm4_moe" || name == "gpt_oss" ||
         name == "kimi_linear";
}

void read_experts(Reading& r, std::int64_t experts) {
  MixtureOfExperts moe;
  moe.experts = experts;
  moe.experts_per_token = r.keys.need(top_k_names, 1, max_experts);
  if (moe.experts_per_token > experts)
    r.keys.fail("num_experts_per_tok",
                fmt::format("{} of {} experts per token cannot be", moe.experts_per_token, experts));
  const bool own_width = r.family->moe == MoeRule::qwen_step || r.family->moe == MoeRule::deepseek;
  moe.moe_intermediate = own_width ? r.keys.need({"moe_intermediate_size"}, 1, limit::width)
                                   : r.keys.need(width_names, 1, limit::width);
  switch (r.family->moe) {
    case MoeRule::qwen_step:
      moe.layers = moe_layers_of_qwen(r);
      break;
    case MoeRule::deepseek:
      moe.layers = moe_layers_of_deepseek(r);
      break;
    case MoeRule::llama4:
      moe.layers = moe_layers_of_llama4(r);
      break;
    default:
      moe.layers = layers_where(r, [](std::int64_t) { return true; });
  }
  read_shared_experts(r, moe);
  moe.router_bias = has_router_bias(r);
  r.model.moe = moe;
}

void read_dense_width(Reading& r) {
  const auto rule = r.family == nullptr ? MlpWidthRule::stated : r.family->width;
  const bool llama4 = r.family != nullptr && r.family->moe == MoeRule::llama4;
  if (rule != MlpWidthRule::four_hidden)
    r.model.dense_intermediate = llama4 ? r.keys.integer({"intermediate_size_mlp"}, 1, limit::width)
                                        : r.keys.integer(width_names, 1, limit::width);
  if (r.model.dense_intermediate || rule == MlpWidthRule::stated) return;
  r.model.dense_intermediate = 4 * r.model.hidden;
  r.derive(fmt::format("MLP width = 4 * hidden = {}: the rule of {}", 4 * r.model.hidden, r.model.family));
}

}  // namespace

void read_mlp(Reading& r) {
  const auto experts = r.keys.integer(expert_names, 0, max_experts);
  if (r.family == nullptr) {
    r.note(fmt::format("model_type '{}' is not known: its MLP, norms and biases are not counted",
                       r.model.family));
    read_dense_width(r);
    return;
  }
  r.model.gated_mlp = r.family->gated;
  if (r.family->moe == MoeRule::none || (experts.value_or(0) == 0 && r.family->moe == MoeRule::deepseek)) {
    read_dense_width(r);
    return;
  }
  read_experts(r, experts ? *experts : r.keys.need(expert_names, 1, max_experts));
  if (static_cast<std::int64_t>(r.model.moe->layers.size()) < r.model.layers) read_dense_width(r);
}

}  // namespace usp
