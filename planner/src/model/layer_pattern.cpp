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

/// full_attn_layers and kda_layers count from 1, or both from 0, and together name every layer once.
Mixers lists_of_kimi(Reading& r) {
  auto config = r.keys.object("linear_attn_config");
  if (!config) r.keys.missing("linear_attn_config", "add it: it lists full_attn_layers and kda_layers");
  Mixers mixers(layer_count(r), LayerMixer::softmax);
  std::vector<bool> seen(layer_count(r), false);
  const std::pair<const char*, LayerMixer> lists[] = {{"full_attn_layers", LayerMixer::softmax},
                                                      {"kda_layers", LayerMixer::linear}};
  std::int64_t first = 1;
  for (const auto& [key, mixer] : lists) {
    const auto list = config->integers(key, 0, r.model.layers);
    if (!list) config->missing(key, "add the list (layers count from 1)");
    if (std::find(list->begin(), list->end(), 0) != list->end()) first = 0;
  }
  for (const auto& [key, mixer] : lists) {
    const auto list = config->integers(key, first, r.model.layers - 1 + first);
    for (const auto layer : *list) {
      const auto i = static_cast<std::size_t>(layer - first);
      if (seen[i]) config->fail(key, fmt::format("layer {} is listed twice", layer));
      seen[i] = true;
      mixers[i] = mixer;
    }
  }
  for (std::size_t i = 0; i < seen.size(); ++i)
    if (!seen[i])
      config->fail("kda_layers",
                   fmt::format("layer {} is in neither list", static_cast<std::int64_t>(i) + first));
  if (first == 1) r.derive("linear_attn_config counts layers from 1; here they count from 0");
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

/// Keys that say how layers differ are refused afterwards where nothing has read them.
Mixers of_unknown_family(Reading& r) {
  const auto window = r.keys.json().find("sliding_window");
  const bool off = r.keys.boolean("use_sliding_window") == false;
  if (off && window != r.keys.json().end() && !window->is_null()) {
    r.keys.mark_read("sliding_window");
    r.note("sliding_window is set but use_sliding_window is off");
  }
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

/// What the config or the family says of the pattern of layers.
Mixers pattern(Reading& r) {
  if (auto listed = mixers_of_lists(r)) {
    // A list of all layers says it; a window or a period beside it adds nothing.
    for (const char* key :
         {"sliding_window", "attention_chunk_size", "sliding_window_pattern", "_sliding_window_pattern",
          "full_attention_interval", "global_attn_every_n_layers"})
      r.keys.mark_read(key);
    refuse_contradiction(r, *listed);
    return *listed;
  }
  if (r.family == nullptr) return of_unknown_family(r);
  switch (r.family->pattern) {
    case PatternRule::full:
      if (r.keys.has({"sliding_window"}) && r.keys.json().at("sliding_window") != false)
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
    case PatternRule::linear:
      r.derive(fmt::format("no list of layers: every layer of {} is linear", r.model.family));
      return Mixers(layer_count(r), LayerMixer::linear);
    case PatternRule::kimi_linear:
      return lists_of_kimi(r);
    case PatternRule::minimax_list:
      return list_of_minimax(r);
  }
  throw InternalError("a layer pattern rule has no reader");
}

/// The mixers of each layer, in layers that have as many each.
std::vector<Mixers> mixers_by_layer(Reading& r) {
  if (r.family != nullptr && !r.family->mixers.empty())
    return std::vector<Mixers>(layer_count(r), r.family->mixers);
  std::vector<Mixers> layers;
  for (const LayerMixer mixer : pattern(r)) layers.push_back({mixer});
  return layers;
}

}  // namespace

std::vector<std::vector<LayerMixer>> read_mixers(Reading& r) {
  std::vector<Mixers> layers = mixers_by_layer(r);
  const bool windows = r.family != nullptr && !r.family->attention_window.empty();
  const bool sparse = r.keys.integer({"index_topk"}, 1, limit::window).has_value();
  for (Mixers& mixers : layers) {
    if (windows) std::replace(mixers.begin(), mixers.end(), LayerMixer::softmax, LayerMixer::sliding);
    if (sparse) std::replace(mixers.begin(), mixers.end(), LayerMixer::softmax, LayerMixer::sparse);
  }
  return layers;
}

}  // namespace usp
