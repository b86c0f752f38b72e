// SPDX-License-Identifier: Apache-2.0
#include "reading.hpp"

#include "usp/base/text.hpp"
#include "usp/base/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace usp {
namespace {

using family::MoeRule;

constexpr KeyNames expert_names = {"num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"};
constexpr KeyNames top_k_names = {
    "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_k",
    "moe_top_k",           "top_k_experts"};
constexpr KeyNames expert_width_names = {"moe_intermediate_size", "moe_ffn_hidden_size",
                                         "expert_ffn_hidden_size", "expert_intermediate_size"};
constexpr KeyNames shared_width_names = {"shared_expert_intermediate_size", "shared_intermediate_size",
                                         "moe_shared_expert_intermediate_size", "share_expert_dim"};
constexpr KeyNames shared_count_names = {"n_shared_experts", "num_shared_experts", "moe_num_shared_experts",
                                         "num_shared_expert"};
constexpr std::int64_t max_experts = 1 << 20;

/// A number, or a list that holds the same number for every layer.
std::optional<std::int64_t> uniform(ConfigKeys& keys, KeyNames names, std::int64_t least, std::int64_t most) {
  for (const char* name : names) {
    if (!keys.is_array(name)) continue;
    const auto list = keys.integers(name, least, most);
    if (!list || list->empty()) continue;
    if (std::any_of(list->begin(), list->end(), [&](auto value) { return value != list->front(); }))
      keys.fail(name, "differs by layer, which is not understood for experts");
    return list->front();
  }
  return keys.integer(names, least, most);
}

std::int64_t needed(ConfigKeys& keys, KeyNames names, std::int64_t least, std::int64_t most) {
  const auto value = uniform(keys, names, least, most);
  return value ? *value : keys.need(names, least, most);
}

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

/// "3,4,5": layers from 0 in one text.
std::vector<int> layers_of_text(Reading& r, const char* key) {
  std::vector<std::int64_t> listed;
  for (const std::string& part : split(r.keys.string(key).value_or(""), ','))
    listed.push_back(parse_integer(trim(part), key));
  return layers_where(
      r, [&](std::int64_t i) { return std::find(listed.begin(), listed.end(), i) != listed.end(); });
}

/// Layers from `first` to `last`, every `step` of them, as ERNIE 4.5 names them.
std::vector<int> layers_of_range(Reading& r) {
  const auto first = uniform(r.keys, {"moe_layer_start_index"}, 0, limit::layers).value_or(0);
  std::int64_t last = r.model.layers - 1;
  if (r.keys.json().contains("moe_layer_end_index") && r.keys.json().at("moe_layer_end_index") != -1)
    last = uniform(r.keys, {"moe_layer_end_index"}, 0, limit::layers).value_or(last);
  const auto step = r.keys.integer({"moe_layer_interval"}, 1, limit::layers).value_or(1);
  return layers_where(r, [&](std::int64_t i) { return i >= first && i <= last && (i + 1) % step == 0; });
}

/// mlp_layer_types: "sparse" is a layer with experts, "dense" one without.
std::vector<int> layers_of_types(Reading& r) {
  const auto types = r.keys.strings("mlp_layer_types").value_or(std::vector<std::string>{});
  if (static_cast<std::int64_t>(types.size()) != r.model.layers)
    r.keys.fail("mlp_layer_types", fmt::format("has {} for {}", counted(types.size(), "entry"),
                                               counted(r.model.layers, "layer")));
  for (const std::string& type : types)
    if (type != "sparse" && type != "dense")
      r.keys.fail("mlp_layer_types", fmt::format("'{}' is neither sparse (experts) nor dense", type));
  return layers_where(r, [&](std::int64_t i) { return types[static_cast<std::size_t>(i)] == "sparse"; });
}

/// By whichever of the published keys the config has; all layers where it has none.
std::vector<int> moe_layers_by_keys(Reading& r) {
  if (r.keys.has({"moe_layers_enum"})) return layers_of_text(r, "moe_layers_enum");
  if (r.keys.has({"moe_layer_start_index"})) return layers_of_range(r);
  if (r.keys.has({"expert_layer_period"})) {
    const auto period = r.keys.need({"expert_layer_period"}, 1, limit::layers);
    const auto offset = r.keys.need({"expert_layer_offset"}, 0, limit::layers);
    return layers_where(r, [&](std::int64_t i) { return i % period == offset; });
  }
  if (r.keys.has({"moe_layers", "interleave_moe_layer_step"})) return moe_layers_of_llama4(r);
  if (const auto dense = r.keys.integer({"num_dense_layers"}, 0, limit::layers))
    return layers_where(r, [&](std::int64_t i) { return i >= *dense; });
  if (r.keys.has({"first_k_dense_replace"}) || r.keys.is_array("moe_layer_freq"))
    return moe_layers_of_deepseek(r);
  if (r.keys.has({"decoder_sparse_step", "mlp_only_layers"})) return moe_layers_of_qwen(r);
  r.derive("experts in every layer: the config names no dense ones");
  return layers_where(r, [](std::int64_t) { return true; });
}

std::vector<int> moe_layers(Reading& r) {
  if (!r.mlps.empty())
    return layers_where(
        r, [&](std::int64_t i) { return r.mlps[static_cast<std::size_t>(i)] == BlockMlp::experts; });
  if (r.keys.has({"mlp_layer_types"})) return layers_of_types(r);
  switch (r.family == nullptr ? MoeRule::by_keys : r.family->moe) {
    case MoeRule::qwen_step:
      return moe_layers_of_qwen(r);
    case MoeRule::deepseek:
      return moe_layers_of_deepseek(r);
    case MoeRule::llama4:
      return moe_layers_of_llama4(r);
    case MoeRule::all_layers:
      return layers_where(r, [](std::int64_t) { return true; });
    case MoeRule::first_dense:
      r.derive(
          fmt::format("the first layer is dense: the config names none; the rule of {}", r.model.family));
      return layers_where(r, [](std::int64_t i) { return i > 0; });
    default:
      return moe_layers_by_keys(r);
  }
}

void read_shared_experts(Reading& r, MixtureOfExperts& moe) {
  const MoeRule rule = r.family == nullptr ? MoeRule::by_keys : r.family->moe;
  const auto width = r.keys.integer(shared_width_names, 0, limit::width);
  if (width && *width > 0) {
    moe.shared_experts = 1;
    moe.shared_intermediate = *width;
    moe.shared_gate = rule == MoeRule::qwen_step;
  } else if (const auto count = uniform(r.keys, shared_count_names, 0, max_experts)) {
    moe.shared_experts = *count;
    moe.shared_intermediate = *count * moe.moe_intermediate;
  } else if (rule == MoeRule::llama4) {
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

/// A config of its own for the experts (DBRX), else the language part.
ConfigKeys expert_keys(Reading& r) {
  auto own = r.keys.object("ffn_config");
  return own && own->has({"moe_num_experts"}) ? *own : r.keys;
}

std::int64_t expert_width(Reading& r, ConfigKeys& keys) {
  const MoeRule rule = r.family == nullptr ? MoeRule::by_keys : r.family->moe;
  if (rule == MoeRule::qwen_step || rule == MoeRule::deepseek)
    return needed(r.keys, {"moe_intermediate_size"}, 1, limit::width);
  if (rule == MoeRule::by_keys || rule == MoeRule::first_dense)
    if (const auto stated = uniform(keys, expert_width_names, 1, limit::width)) return *stated;
  return keys.need(mlp_width_names, 1, limit::width);
}

}  // namespace

std::optional<std::int64_t> expert_count(Reading& r) {
  ConfigKeys keys = expert_keys(r);
  return uniform(keys, expert_names, 0, max_experts);
}

std::string stated_expert_key(const Reading& r) {
  for (const char* name : expert_names)
    if (r.keys.has({name})) return name;
  return "num_experts";
}

void read_experts(Reading& r, std::int64_t experts) {
  ConfigKeys keys = expert_keys(r);
  MixtureOfExperts moe;
  moe.experts = experts > 0 ? experts : keys.need(expert_names, 1, max_experts);
  moe.experts_per_token = needed(keys, top_k_names, 1, max_experts);
  if (moe.experts_per_token > moe.experts)
    r.keys.fail("num_experts_per_tok",
                fmt::format("{} of {} experts per token cannot be", moe.experts_per_token, moe.experts));
  moe.moe_intermediate = expert_width(r, keys);
  moe.layers = moe_layers(r);
  if (moe.layers.empty())
    r.keys.fail(
        stated_expert_key(r).c_str(),
        fmt::format("states {} experts, and the other keys leave none of {} to hold them; one of the two "
                    "is wrong",
                    moe.experts, counted(r.model.layers, "layer")));
  read_shared_experts(r, moe);
  // Gemma 4 runs the dense MLP beside the experts of a layer.
  if (r.keys.boolean("enable_moe_block").value_or(false)) {
    moe.shared_experts = 1;
    moe.shared_intermediate = r.keys.need(mlp_width_names, 1, limit::width);
  }
  moe.router_bias = has_router_bias(r);
  const auto zero = r.family == nullptr ? 0 : r.keys.integer({"zero_expert_num"}, 0, max_experts).value_or(0);
  if (zero > 0)
    r.note(fmt::format(
        "{} zero-compute experts have no weights; a token's mean of routed experts is lower than the {} "
        "that are counted",
        zero, moe.experts_per_token));
  r.model.moe = moe;
}

}  // namespace usp
