// SPDX-License-Identifier: Apache-2.0
#include "reading.hpp"

#include "usp/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace usp {
namespace {

using Mixers = std::vector<LayerMixer>;

struct BlockName {
  std::string_view name;
  LayerMixer mixer = LayerMixer::softmax;
  BlockMlp mlp = BlockMlp::by_rule;
  std::optional<LinearStyle> linear = {};
};

/// What published configs call their layers.
constexpr BlockName block_names[] = {
    {"full_attention"},
    {"attention"},
    {"global_attention"},
    {"sliding_attention", LayerMixer::sliding},
    {"chunked_attention", LayerMixer::chunked},
    {"linear_attention", LayerMixer::linear},
    {"sparse_attention", LayerMixer::sparse},
    {"deepseek_sparse_attention", LayerMixer::sparse},
    {"cross_attention", LayerMixer::cross},
    {"mamba", LayerMixer::linear, BlockMlp::by_rule, LinearStyle::mamba},
    {"mamba2", LayerMixer::linear, BlockMlp::by_rule, LinearStyle::mamba2},
    {"conv", LayerMixer::linear, BlockMlp::by_rule, LinearStyle::short_conv},
    {"recurrent", LayerMixer::linear, BlockMlp::by_rule, LinearStyle::rg_lru},
    {"mlp", LayerMixer::none, BlockMlp::dense},
    {"moe", LayerMixer::none, BlockMlp::experts},
};

std::size_t layer_count(const Reading& r) {
  return static_cast<std::size_t>(r.model.layers);
}

void check_count(Reading& r, const char* key, std::size_t entries) {
  if (entries != layer_count(r))
    r.keys.fail(key, fmt::format("has {} for {}; one of the two is wrong", counted(entries, "entry"),
                                 counted(r.model.layers, "layer")));
}

/// "mamba" alone says neither version: Mamba-2 has heads.
LinearStyle mamba_style(const Reading& r) {
  return r.keys.has({"mamba_n_heads", "mamba_num_heads"}) ? LinearStyle::mamba2 : LinearStyle::mamba;
}

void set_linear(Reading& r, LinearStyle style, const char* key) {
  if (r.linear && *r.linear != style)
    r.keys.fail(key, "layers with linear attention of two kinds in one model are not understood");
  r.linear = style;
}

/// Where one block is an MLP alone, the attention blocks have no MLP.
void alone(Reading& r) {
  if (std::all_of(r.mlps.begin(), r.mlps.end(), [](BlockMlp mlp) { return mlp == BlockMlp::by_rule; })) {
    r.mlps.clear();
    return;
  }
  for (BlockMlp& mlp : r.mlps)
    if (mlp == BlockMlp::by_rule) mlp = BlockMlp::none;
  r.derive("blocks are attention or an MLP, not both: the list of blocks names each");
}

Mixers from_names(Reading& r, const char* key, const std::vector<std::string>& names) {
  check_count(r, key, names.size());
  Mixers mixers;
  for (const std::string& name : names) {
    const auto* const at = std::find_if(std::begin(block_names), std::end(block_names),
                                        [&](const BlockName& block) { return block.name == name; });
    if (at == std::end(block_names)) {
      std::string known;
      for (const BlockName& block : block_names)
        known += (known.empty() ? "" : ", ") + std::string(block.name);
      r.keys.fail(key, fmt::format("'{}' is not a layer this planner knows ({})", name, known));
    }
    mixers.push_back(at->mixer);
    r.mlps.push_back(at->mlp);
    if (at->linear) set_linear(r, at->name == "mamba" ? mamba_style(r) : *at->linear, key);
  }
  alone(r);
  return mixers;
}

/// "M-M*ME": M is Mamba-2, * attention, - an MLP, E experts (Nemotron-H).
Mixers from_letters(Reading& r, const char* key, const std::string& letters) {
  check_count(r, key, letters.size());
  Mixers mixers;
  for (const char letter : letters) {
    const bool mamba = letter == 'M';
    if (!mamba && letter != '*' && letter != '-' && letter != 'E')
      r.keys.fail(key,
                  fmt::format("'{}' is no block this planner knows (M: Mamba-2, *: attention, -: MLP, E: "
                              "experts)",
                              letter));
    mixers.push_back(mamba ? LayerMixer::linear : letter == '*' ? LayerMixer::softmax : LayerMixer::none);
    r.mlps.push_back(letter == '-' ? BlockMlp::dense : letter == 'E' ? BlockMlp::experts : BlockMlp::by_rule);
    if (mamba) set_linear(r, LinearStyle::mamba2, key);
  }
  alone(r);
  return mixers;
}

/// "LLLG" over and over: L sees a window, G all tokens (EXAONE 4).
Mixers from_windows(Reading& r, const char* key, const std::string& letters) {
  if (letters.empty() || letters.find_first_not_of("LG") != std::string::npos)
    r.keys.fail(key, fmt::format("'{}' is no pattern of L (window) and G (all tokens)", letters));
  Mixers mixers;
  for (std::size_t i = 0; i < layer_count(r); ++i)
    mixers.push_back(letters[i % letters.size()] == 'L' ? LayerMixer::sliding : LayerMixer::softmax);
  r.derive(fmt::format("{}: '{}' over and over, L sees a window and G all tokens", key, letters));
  return mixers;
}

/// One object per block with its attention and its ffn, either of which may be left out (Nemotron-NAS).
Mixers from_block_configs(Reading& r, const char* key) {
  std::vector<ConfigKeys> blocks = r.keys.objects(key);
  check_count(r, key, blocks.size());
  const std::int64_t heads = r.keys.need({"num_attention_heads"}, 1, limit::heads);
  Mixers mixers;
  std::int64_t replaced = 0;
  for (ConfigKeys& block : blocks) {
    auto attention = block.object("attention"), ffn = block.object("ffn");
    if (!attention || !ffn) block.missing(attention ? "ffn" : "attention", "a block config has both");
    const bool linear = attention->boolean("replace_with_linear").value_or(false) ||
                        ffn->boolean("replace_with_linear").value_or(false);
    replaced += linear ? 1 : 0;
    const bool no_attention = attention->boolean("no_op").value_or(false) ||
                              attention->boolean("replace_with_linear").value_or(false);
    if (no_attention) {
      mixers.push_back(LayerMixer::none);
      r.kv_heads.push_back(0);
    } else {
      const auto window = attention->integer({"window_length"}, 1, limit::window);
      if (window) attention->fail("window_length", "windows of single blocks are not understood");
      const std::int64_t group = attention->need({"n_heads_in_group"}, 1, heads);
      if (heads % group != 0)
        attention->fail("n_heads_in_group", fmt::format("{} does not divide {} query heads", group, heads));
      mixers.push_back(LayerMixer::softmax);
      r.kv_heads.push_back(heads / group);
    }
    const bool no_mlp =
        ffn->boolean("no_op").value_or(false) || ffn->boolean("replace_with_linear").value_or(false);
    const double factor = no_mlp ? 0 : ffn->number("ffn_mult", 1e-3, 1e3).value_or(0);
    if (!no_mlp && factor == 0) ffn->missing("ffn_mult", "add the key: it gives the MLP's width");
    // As its modelling code rounds it: two thirds of the factor, up to a multiple of 256.
    const auto width = static_cast<std::int64_t>(2 * factor * static_cast<double>(r.model.hidden) / 3);
    r.widths.push_back((width + 255) / 256 * 256);
  }
  r.derive(fmt::format("{}: attention, KV heads and MLP width block by block", key));
  if (replaced > 0)
    r.note(
        fmt::format("{} blocks have one matrix in place of attention or MLP; it is not counted", replaced));
  return mixers;
}

Mixers where(const std::vector<bool>& listed, LayerMixer in, LayerMixer out) {
  Mixers mixers;
  for (const bool here : listed) mixers.push_back(here ? in : out);
  return mixers;
}

/// Attention in layers i with i % period == offset, Mamba in the others (Jamba).
Mixers from_period(Reading& r) {
  const auto period = r.keys.need({"attn_layer_period"}, 1, limit::layers);
  const auto offset = r.keys.need({"attn_layer_offset"}, 0, period - 1);
  set_linear(r, mamba_style(r), "attn_layer_period");
  r.derive(fmt::format("attention in layers i with i % {} = {}, Mamba in the others", period, offset));
  Mixers mixers;
  for (std::int64_t i = 0; i < r.model.layers; ++i)
    mixers.push_back(i % period == offset ? LayerMixer::softmax : LayerMixer::linear);
  return mixers;
}

/// 1 slides, 0 sees all tokens (MiMo-V2-Flash).
Mixers from_flags(Reading& r, const char* key) {
  Mixers mixers;
  for (const auto flag : r.keys.per_layer(key, r.model.layers, 0, 1))
    mixers.push_back(flag == 1 ? LayerMixer::sliding : LayerMixer::softmax);
  r.derive(fmt::format("{}: 1 sees a window, 0 all tokens", key));
  return mixers;
}

/// block_types over and over, cut at the number of layers; without the key what the config class has
/// (RecurrentGemma).
std::optional<std::vector<std::string>> cycled_blocks(Reading& r) {
  auto names = r.keys.strings("block_types");
  const bool cycles = r.family != nullptr && !r.family->cycle.empty();
  if (!names && cycles) {
    names.emplace(r.family->cycle.begin(), r.family->cycle.end());
    r.derive(
        fmt::format("block_types: the config states none; {} has {}", r.model.family, join(*names, ", ")));
  }
  if (!names || !cycles || names->empty() || names->size() == layer_count(r)) return names;
  r.derive(fmt::format("block_types: its {} over and over, cut at the number of layers",
                       counted(names->size(), "entry")));
  std::vector<std::string> all;
  for (std::size_t i = 0; i < layer_count(r); ++i) all.push_back((*names)[i % names->size()]);
  return all;
}

/// [[["global", "local"], 16]]: the names over and over, so many times (GPT-Neo).
std::vector<std::string> repeated_names(Reading& r, const char* key) {
  std::vector<std::string> names;
  r.keys.mark_read(key);
  const Json& list = r.keys.json().at(key);
  for (const Json& entry : list) {
    const bool sound = entry.is_array() && entry.size() == 2 && entry[0].is_array() &&
                       entry[1].is_number_integer() && entry[1] >= 1 && entry[1] <= limit::layers &&
                       entry[0].size() <= 64;
    if (!sound) r.keys.fail(key, "expected [[names], count] pairs");
    for (std::int64_t n = entry[1]; n > 0; --n)
      for (const Json& name : entry[0]) {
        if (name != "global" && name != "local") r.keys.fail(key, "a layer is global or local");
        names.emplace_back(name == "global" ? "full_attention" : "sliding_attention");
        if (static_cast<std::int64_t>(names.size()) > limit::layers)
          r.keys.fail(key, "more layers than a model has");
      }
  }
  return names;
}

}  // namespace

std::vector<bool> listed_layers(Reading& r, ConfigKeys& keys, const char* key) {
  const auto list = keys.integers(key, 0, r.model.layers);
  if (!list) keys.missing(key, "add the list of layers");
  const auto has = [&](std::int64_t n) { return std::find(list->begin(), list->end(), n) != list->end(); };
  const bool from_one = has(r.model.layers);
  if (from_one && has(0))
    keys.fail(key, fmt::format("lists 0 and {} for {} layers; it counts neither from 0 nor from 1",
                               r.model.layers, r.model.layers));
  if (from_one) r.derive(fmt::format("{} counts layers from 1; here they count from 0", key));
  std::vector<bool> listed(layer_count(r), false);
  for (const std::int64_t number : *list) {
    const auto i = static_cast<std::size_t>(number - (from_one ? 1 : 0));
    if (listed[i]) keys.fail(key, fmt::format("layer {} is listed twice", number));
    listed[i] = true;
  }
  return listed;
}

std::optional<std::vector<LayerMixer>> mixers_of_lists(Reading& r) {
  for (const char* key : {"layer_types", "layers_block_type"})
    if (const auto names = r.keys.strings(key)) return from_names(r, key, *names);
  if (const auto names = cycled_blocks(r)) return from_names(r, "block_types", *names);
  if (r.keys.is_string("hybrid_override_pattern"))
    return from_letters(r, "hybrid_override_pattern", *r.keys.string("hybrid_override_pattern"));
  if (r.keys.is_string("sliding_window_pattern"))
    return from_windows(r, "sliding_window_pattern", *r.keys.string("sliding_window_pattern"));
  if (r.keys.has({"block_configs"})) return from_block_configs(r, "block_configs");
  if (r.keys.has({"attn_layer_period"})) return from_period(r);
  if (r.keys.is_array("hybrid_layer_pattern")) return from_flags(r, "hybrid_layer_pattern");
  if (r.keys.is_array("attention_types"))
    return from_names(r, "attention_types", repeated_names(r, "attention_types"));
  if (r.keys.has({"attn_layer_indices"})) {
    set_linear(r, mamba_style(r), "attn_layer_indices");
    return where(listed_layers(r, r.keys, "attn_layer_indices"), LayerMixer::softmax, LayerMixer::linear);
  }
  if (r.keys.has({"full_attn_idxs"})) {
    set_linear(r, LinearStyle::short_conv, "full_attn_idxs");
    return where(listed_layers(r, r.keys, "full_attn_idxs"), LayerMixer::softmax, LayerMixer::linear);
  }
  if (r.keys.has({"cross_attention_layers"}))
    return where(listed_layers(r, r.keys, "cross_attention_layers"), LayerMixer::cross, LayerMixer::softmax);
  return std::nullopt;
}

}  // namespace usp
