// SPDX-License-Identifier: Apache-2.0
#include "reading.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp {
namespace {

using Mixers = std::vector<LayerMixer>;
using family::PatternRule;

std::size_t layer_count(const Reading& r) {
  return static_cast<std::size_t>(r.model.layers);
}

Mixers from_layer_types(Reading& r, const std::vector<std::string>& types) {
  if (types.size() != layer_count(r))
    r.keys.fail("layer_types", fmt::format("has {} entries for {} layers; one of the two is wrong",
                                           types.size(), r.model.layers));
  static const EnumNames<LayerMixer> names = {{"full_attention", LayerMixer::softmax},
                                              {"sliding_attention", LayerMixer::sliding},
                                              {"chunked_attention", LayerMixer::chunked},
                                              {"linear_attention", LayerMixer::linear}};
  Mixers mixers;
  for (const auto& type : types) {
    const auto at = std::find_if(names.begin(), names.end(), [&](const auto& n) { return n.first == type; });
    if (at == names.end())
      r.keys.fail("layer_types", fmt::format("'{}' is not a layer this planner knows (full_attention, "
                                             "sliding_attention, chunked_attention, linear_attention)",
                                             type));
    mixers.push_back(at->second);
  }
  return mixers;
}

/// Layer i is `nth` when (i + 1) % period == 0, else `other`.
Mixers every_nth(const Reading& r, std::int64_t period, LayerMixer nth, LayerMixer other) {
  Mixers mixers;
  for (std::int64_t i = 0; i < r.model.layers; ++i) mixers.push_back((i + 1) % period == 0 ? nth : other);
  return mixers;
}

/// `rule` holds "(i + 1) % N == 0"; what is derived names the number.
std::int64_t period_of(Reading& r, std::string rule) {
  const auto& f = *r.family;
  std::optional<std::int64_t> stated;
  std::string origin = fmt::format("the config states none; the rule of {} is", r.model.family);
  if (!f.period_key.empty()) {
    const std::string key(f.period_key);
    const std::string private_key = "_" + key;  // newer configs keep it under this name
    stated = r.keys.integer({key.c_str(), private_key.c_str()}, 1, limit::layers);
    if (stated) origin = "from " + key;
  }
  const std::int64_t period = stated.value_or(f.period);
  rule.replace(rule.find('N'), 1, std::to_string(period));
  r.derive(fmt::format("layer pattern: {}: {}", origin, rule));
  return period;
}

Mixers window_on_all(Reading& r) {
  const bool set = r.keys.has({"sliding_window"});
  if (!set && !r.keys.stated("sliding_window") && r.family->default_window) {
    r.derive(fmt::format(
        "sliding_window: the config states none; {} then uses {} on every layer (null switches it off)",
        r.model.family, *r.family->default_window));
    return Mixers(layer_count(r), LayerMixer::sliding);
  }
  if (set) r.derive("sliding_window is set: it holds on every layer of " + r.model.family);
  return Mixers(layer_count(r), set ? LayerMixer::sliding : LayerMixer::softmax);
}

Mixers window_of_qwen(Reading& r) {
  const auto window = r.keys.integer({"sliding_window"}, 1, limit::window);
  const bool on = r.keys.boolean("use_sliding_window").value_or(false);
  if (window && !on) r.note(fmt::format("sliding_window is {} but use_sliding_window is off", *window));
  if (!on || !window) return Mixers(layer_count(r), LayerMixer::softmax);
  const std::int64_t first = r.keys.need({"max_window_layers"}, 0, limit::layers);
  r.derive(fmt::format("use_sliding_window: layers from max_window_layers = {} on slide", first));
  Mixers mixers;
  for (std::int64_t i = 0; i < r.model.layers; ++i)
    mixers.push_back(i >= first ? LayerMixer::sliding : LayerMixer::softmax);
  return mixers;
}

Mixers chunks_of_llama4(Reading& r) {
  if (const auto rope = r.keys.integers("no_rope_layers", 0, 1); rope && !rope->empty()) {
    r.derive("layers with a rotary embedding (no_rope_layers = 1) are chunked, the others see all tokens");
    Mixers mixers;
    for (const auto on : r.keys.per_layer("no_rope_layers", r.model.layers, 0, 1))
      mixers.push_back(on == 1 ? LayerMixer::chunked : LayerMixer::softmax);
    return mixers;
  }
  const auto period = period_of(r, "layers with (i + 1) % N == 0 see all tokens, the others their chunk");
  return every_nth(r, period, LayerMixer::softmax, LayerMixer::chunked);
}

/// full_attn_layers and kda_layers count from 1 and together name every layer once.
Mixers lists_of_kimi(Reading& r) {
  auto config = r.keys.object("linear_attn_config");
  if (!config) r.keys.missing("linear_attn_config", "add it: it lists full_attn_layers and kda_layers");
  Mixers mixers(layer_count(r), LayerMixer::softmax);
  std::vector<bool> seen(layer_count(r), false);
  const auto place = [&](const char* key, LayerMixer mixer) {
    const auto list = config->integers(key, 1, r.model.layers);
    if (!list) config->missing(key, "add the list (layers count from 1)");
    for (const auto layer : *list) {
      const auto i = static_cast<std::size_t>(layer - 1);
      if (seen[i]) config->fail(key, fmt::format("layer {} is listed twice", layer));
      seen[i] = true;
      mixers[i] = mixer;
    }
  };
  place("full_attn_layers", LayerMixer::softmax);
  place("kda_layers", LayerMixer::linear);
  for (std::size_t i = 0; i < seen.size(); ++i)
    if (!seen[i]) config->fail("kda_layers", fmt::format("layer {} is in neither list", i + 1));
  r.derive("linear_attn_config counts layers from 1; here they count from 0");
  return mixers;
}

Mixers list_of_minimax(Reading& r) {
  if (!r.keys.has({"attn_type_list"}))
    r.keys.missing("attn_type_list", "add it (or layer_types): it says which layers are linear");
  Mixers mixers;
  for (const auto type : r.keys.per_layer("attn_type_list", r.model.layers, 0, 1))
    mixers.push_back(type == 1 ? LayerMixer::softmax : LayerMixer::linear);
  r.derive("attn_type_list: 1 is softmax attention, 0 is lightning attention");
  return mixers;
}

Mixers of_unknown_family(Reading& r) {
  const bool off = r.keys.boolean("use_sliding_window") == false;
  for (const char* key : {"sliding_window", "attention_chunk_size", "full_attention_interval",
                          "linear_num_key_heads", "linear_attn_config", "attn_type_list", "mamba_d_state",
                          "state_size", "hybrid_override_pattern", "attn_layer_period", "layers_block_type"})
    if (r.keys.has({key}) && !(off && std::string(key) == "sliding_window"))
      r.keys.missing("layer_types",
                     fmt::format("the config has {} but does not say which layers it concerns, and the rule "
                                 "of model_type '{}' is not known; list one type per layer",
                                 key, r.model.family));
  r.derive("no layer_types and no window: every layer is taken as full attention");
  return Mixers(layer_count(r), LayerMixer::softmax);
}

Mixers hybrid_of_qwen(Reading& r) {
  const auto period = period_of(r, "layers with (i + 1) % N == 0 are softmax attention, the others linear");
  return every_nth(r, period, LayerMixer::softmax, LayerMixer::linear);
}

void refuse_contradiction(Reading& r, const Mixers& listed) {
  if (r.family == nullptr || r.family->pattern != PatternRule::every_nth_softmax) return;
  const auto period = r.keys.integer({"full_attention_interval"}, 1, limit::layers);
  if (period && listed != every_nth(r, *period, LayerMixer::softmax, LayerMixer::linear))
    r.keys.fail("full_attention_interval", "disagrees with layer_types; keep the one that is true");
}

}  // namespace

std::vector<LayerMixer> read_mixers(Reading& r) {
  if (const auto types = r.keys.strings("layer_types")) {
    Mixers mixers = from_layer_types(r, *types);
    refuse_contradiction(r, mixers);
    return mixers;
  }
  if (r.family == nullptr) return of_unknown_family(r);
  switch (r.family->pattern) {
    case PatternRule::full:
      if (r.keys.has({"sliding_window"}))
        r.note(fmt::format("sliding_window is set, but {} has no sliding layers", r.model.family));
      return Mixers(layer_count(r), LayerMixer::softmax);
    case PatternRule::window_all:
      return window_on_all(r);
    case PatternRule::window_qwen:
      return window_of_qwen(r);
    case PatternRule::every_nth_full:
      return every_nth(r, period_of(r, "layers with (i + 1) % N == 0 see all tokens, the others slide"),
                       LayerMixer::softmax, LayerMixer::sliding);
    case PatternRule::chunked:
      return chunks_of_llama4(r);
    case PatternRule::every_nth_softmax:
      return hybrid_of_qwen(r);
    case PatternRule::kimi_linear:
      return lists_of_kimi(r);
    case PatternRule::minimax_list:
      return list_of_minimax(r);
  }
  throw InternalError("a layer pattern rule has no reader");
}

}  // namespace usp
