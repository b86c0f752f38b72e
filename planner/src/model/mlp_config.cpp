// SPDX-License-Identifier: Apache-2.0
#include "reading.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace usp {
namespace {

using family::MlpWidthRule;
using family::MoeRule;

std::int64_t multiple_of(double value, std::int64_t divisor) {
  return static_cast<std::int64_t>(std::ceil(value / static_cast<double>(divisor))) * divisor;
}

/// LFM2 keeps two thirds of the stated width, up to a multiple.
void adjust_width(Reading& r) {
  if (!r.model.dense_intermediate || !r.keys.boolean("block_auto_adjust_ff_dim").value_or(false)) return;
  const auto multiple = r.keys.integer({"block_multiple_of"}, 1, limit::width).value_or(256);
  const double factor = r.keys.number("block_ffn_dim_multiplier", 1e-3, 1e3).value_or(1);
  const std::int64_t stated = *r.model.dense_intermediate;
  r.model.dense_intermediate =
      multiple_of(std::floor(factor * std::floor(2 * static_cast<double>(stated) / 3)), multiple);
  r.derive(fmt::format("MLP width {}: two thirds of {}, block_auto_adjust_ff_dim",
                       *r.model.dense_intermediate, stated));
}

/// OpenELM: one factor of the hidden size per layer.
void read_multipliers(Reading& r) {
  const Json& list = r.keys.json().at("ffn_multipliers");
  r.keys.mark_read("ffn_multipliers");
  if (!list.is_array() || static_cast<std::int64_t>(list.size()) != r.model.layers)
    r.keys.fail("ffn_multipliers", fmt::format("a list of {} factors is needed", r.model.layers));
  const auto divisor = r.keys.integer({"ffn_dim_divisor"}, 1, limit::width).value_or(1);
  for (const Json& factor : list) {
    if (!factor.is_number() || factor < 1e-3 || factor > 1e3)
      r.keys.fail("ffn_multipliers", "a factor between 0.001 and 1000 is needed");
    // As its modelling code rounds it: to the nearest multiple, and not below 90% of the value.
    const double value = factor.get<double>() * static_cast<double>(r.model.hidden);
    auto width = static_cast<std::int64_t>(value + static_cast<double>(divisor) / 2) / divisor * divisor;
    if (static_cast<double>(width) < 0.9 * value) width += divisor;
    r.widths.push_back(std::max(divisor, width));
  }
  r.derive("MLP widths follow from ffn_multipliers");
}

/// A width for each layer in place of one.
bool read_listed_widths(Reading& r) {
  for (const char* key : mlp_width_names) {
    if (!r.keys.is_array(key)) continue;
    const std::vector<std::int64_t> listed = r.keys.per_layer(key, r.model.layers, 0, limit::width);
    if (listed.empty()) return false;
    r.model.dense_intermediate = *std::max_element(listed.begin(), listed.end());
    if (std::any_of(listed.begin(), listed.end(), [&](auto width) { return width != listed.front(); }))
      r.widths = listed;
    return true;
  }
  return false;
}

void read_dense_width(Reading& r) {
  const auto rule = r.family == nullptr ? MlpWidthRule::stated : r.family->width;
  const bool llama4 = r.family != nullptr && r.family->moe == MoeRule::llama4;
  if (r.keys.is_array("ffn_multipliers")) return read_multipliers(r);
  if (read_listed_widths(r)) return;
  if (rule != MlpWidthRule::four_hidden)
    r.model.dense_intermediate = llama4 ? r.keys.integer({"intermediate_size_mlp"}, 1, limit::width)
                                        : r.keys.integer(mlp_width_names, 1, limit::width);
  adjust_width(r);
  if (rule == MlpWidthRule::half_stated && r.model.dense_intermediate) {
    *r.model.dense_intermediate /= 2;
    r.derive(fmt::format("MLP width {}: half of intermediate_size, which counts both of its first matrices",
                         *r.model.dense_intermediate));
    return;
  }
  if (r.model.dense_intermediate || rule == MlpWidthRule::stated) return;
  if (const auto factor = r.keys.number("expansion_ratio", 1e-3, 1e3)) {
    r.model.dense_intermediate = static_cast<std::int64_t>(*factor * static_cast<double>(r.model.hidden));
    r.derive(fmt::format("MLP width = expansion_ratio * hidden = {}", *r.model.dense_intermediate));
    return;
  }
  r.model.dense_intermediate = 4 * r.model.hidden;
  r.derive(fmt::format("MLP width = 4 * hidden = {}: the rule of {}", 4 * r.model.hidden, r.model.family));
}

std::string activation(Reading& r) {
  for (const char* key :
       {"hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act", "act_fn"})
    if (r.keys.is_string(key)) return *r.keys.string(key);
  return "";
}

/// Unknown families: SiLU is gated in every published decoder; of GELU and ReLU both forms exist.
void assume_gate(Reading& r) {
  for (const char* key : {"gated_mlp", "ffn_with_glu"})
    if (const auto stated = r.keys.boolean(key)) r.model.gated_mlp = stated;
  if (r.model.gated_mlp) return;
  const std::string act = activation(r);
  if (act == "silu" || act == "swish" || act.find("glu") != std::string::npos) {
    r.model.gated_mlp = true;
    r.derive(
        fmt::format("the MLP is gated (3 matrices): assumed from the activation '{}' (--model-key "
                    "gated_mlp=false for 2)",
                    act));
    return;
  }
  r.note("whether the MLP is gated is not stated: say --model-key gated_mlp=true (3 matrices) or false (2)");
}

/// Widths of single layers: from a list of blocks, or 0 where a block has no MLP.
void place_widths(Reading& r) {
  Model& model = r.model;
  if (!r.widths.empty()) {
    model.mlp_widths = r.widths;
    return;
  }
  const bool some_none =
      std::any_of(r.mlps.begin(), r.mlps.end(), [](BlockMlp mlp) { return mlp == BlockMlp::none; });
  if (!some_none) return;
  for (const BlockMlp mlp : r.mlps)
    model.mlp_widths.push_back(mlp == BlockMlp::dense && model.dense_intermediate ? *model.dense_intermediate
                                                                                  : 0);
}

/// A model without experts has no layer that is said to hold them.
void refuse_sparse_layers(Reading& r, std::optional<std::int64_t> experts) {
  const auto refuse = [&](const std::string& key) {
    const std::string why = experts ? "the config states 0 experts" : "no key states their number";
    r.keys.fail(key.c_str(), "names layers with experts, and " + why + "; one of the two is wrong");
  };
  const auto types = r.keys.strings("mlp_layer_types").value_or(std::vector<std::string>{});
  if (std::find(types.begin(), types.end(), "sparse") != types.end()) refuse("mlp_layer_types");
  if (r.keys.is_array("moe_layer_freq")) {
    const auto flags = r.keys.per_layer("moe_layer_freq", r.model.layers, 0, 1);
    if (std::find(flags.begin(), flags.end(), 1) != flags.end()) refuse("moe_layer_freq");
  }
  for (const char* key : {"moe_layers", "moe_layers_enum"})
    if (r.keys.has({key}) && !r.keys.json().at(key).empty()) refuse(key);
  if (std::find(r.mlps.begin(), r.mlps.end(), BlockMlp::experts) != r.mlps.end()) refuse("num_experts");
}

}  // namespace

void read_mlp(Reading& r) {
  const auto experts = expert_count(r);
  if (experts.value_or(0) == 0) refuse_sparse_layers(r, experts);
  const MoeRule rule = r.family == nullptr ? MoeRule::by_keys : r.family->moe;
  if (rule == MoeRule::none && experts.value_or(0) > 1)
    r.keys.fail(
        stated_expert_key(r).c_str(),
        fmt::format("states {} experts, and {} has none; name the family that they are of (--model-key "
                    "model_type=...), or take them away",
                    *experts, r.model.family));
  if (r.family == nullptr)
    assume_gate(r);
  else
    r.model.gated_mlp = r.family->gated;
  if (const auto stated = r.keys.boolean("gated_mlp")) r.model.gated_mlp = stated;
  const bool may_be_dense = rule == MoeRule::none || rule == MoeRule::by_keys || rule == MoeRule::deepseek;
  if (rule == MoeRule::none || (experts.value_or(0) == 0 && may_be_dense)) {
    read_dense_width(r);
    place_widths(r);
    return;
  }
  read_experts(r, experts.value_or(0));
  if (static_cast<std::int64_t>(r.model.moe->layers.size()) < r.model.layers) read_dense_width(r);
  place_widths(r);
}

}  // namespace usp
