// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config_keys.hpp"
#include "family.hpp"

#include <optional>
#include <string>
#include <vector>

namespace usp {

using family::BlockMlp;

/// One config being read: the language part, the file's top level, the family's rules and the model so far.
struct Reading {
  ConfigKeys& keys;
  ConfigKeys& top;
  const family::Family* family;  ///< null for an unknown model_type
  Model& model;
  std::vector<BlockMlp> mlps = {};          ///< of each layer; empty: the family's rule
  std::vector<std::int64_t> widths = {};    ///< MLP width of each layer, from a list of blocks
  std::vector<std::int64_t> kv_heads = {};  ///< of each layer, from a list of blocks; 0: no attention
  std::optional<LinearStyle> linear = {};   ///< that the names of layers tell

  void derive(const std::string& sentence) { model.derived.push_back(sentence); }
  void note(const std::string& sentence) { model.notes.push_back(sentence); }
};

/// The mixers of each layer, one entry per layer.
[[nodiscard]] std::vector<std::vector<LayerMixer>> read_mixers(Reading& r);

/// Mixers from lists that name every block, whatever the family: layer types, patterns of letters, lists of
/// block configs, lists of layer numbers, periods. Empty when the config has none of them.
[[nodiscard]] std::optional<std::vector<LayerMixer>> mixers_of_lists(Reading& r);

/// Which layers a list of numbers means: it counts from 0, unless a 0 is absent and the number of layers is
/// in it. Throws InvalidInput for numbers out of range and for numbers that are listed twice.
[[nodiscard]] std::vector<bool> listed_layers(Reading& r, ConfigKeys& keys, const char* key);

/// Refuses keys that speak of layers or of what a query sees and that nothing has read; for known families
/// they become a note.
void refuse_unread_rules(Reading& r);

/// Throws UsageError for a setting "KEY=VALUE" whose key nothing has read; null takes a key away.
void refuse_unread_settings(const Reading& r, const std::vector<std::string>& settings);

/// Names of the number of query heads.
inline constexpr KeyNames query_names = {"num_attention_heads", "n_head", "n_heads", "num_heads",
                                         "attention_heads"};
/// Of each layer.
[[nodiscard]] std::vector<std::int64_t> query_heads(Reading& r);
/// Stated, or hidden size over heads where the family's rule says so.
[[nodiscard]] std::int64_t head_dim(Reading& r, const std::vector<std::int64_t>& query);
/// Heads of the linear layers, by the style that the names of layers or the family tell.
[[nodiscard]] LinearHeads read_linear_heads(Reading& r);

/// Fills Model::kinds and Model::mla: heads and head dims of each layer, grouped.
void read_layers(Reading& r);

/// Names of an MLP's width.
inline constexpr KeyNames mlp_width_names = {"intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim"};
/// Routed experts of a layer; empty when the config states none.
[[nodiscard]] std::optional<std::int64_t> expert_count(Reading& r);
[[nodiscard]] std::string stated_expert_key(const Reading& r);  ///< the key that states their number
/// Fills Model::moe. @param experts of a layer; 0 refuses by the key's name
void read_experts(Reading& r, std::int64_t experts);

/// Fills the MLP and the mixture of experts.
void read_mlp(Reading& r);

/// Fills Model::details: biases, norms, learnt positions.
void read_details(Reading& r);

}  // namespace usp
