// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/json.hpp"
#include "usp/planner/model.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// What the public model code of each family (Hugging Face transformers, or the repository's own modeling
/// file) defines where its config.json is silent. Private to the config reader.
namespace usp::family {

enum class KvRule { stated, equals_heads, multi_query_flag, falcon, group_num };
enum class HeadDimRule { stated, hidden_over_heads };
/// Which layers slide, are chunked or are linear when the config has no layer list.
enum class PatternRule {
  full,               ///< every layer is full attention
  window_all,         ///< `sliding_window` set: on every layer
  window_qwen,        ///< `use_sliding_window` and `max_window_layers`
  every_nth_full,     ///< layer i is full when (i + 1) % period == 0, else sliding
  chunked,            ///< as every_nth_full, chunked instead of sliding (Llama 4)
  every_nth_softmax,  ///< as every_nth_full, linear instead of sliding (Qwen3-Next)
  linear,             ///< every layer is linear
  kimi_linear,        ///< linear_attn_config
  minimax_list,       ///< attn_type_list
};
/// `first_dense`: without mlp_layer_types all but the first layer have experts.
/// `by_keys`: by whichever published key names the layers; without experts the MLP is dense.
enum class MoeRule { none, all_layers, qwen_step, deepseek, llama4, first_dense, by_keys };
enum class MlpWidthRule { stated, half_stated, four_hidden_if_absent, four_hidden };

/// The MLP of a block where the config or the family says so block by block.
enum class BlockMlp { by_rule, none, dense, experts };

struct Family {
  std::vector<std::string_view> names = {};  ///< values of model_type
  KvRule kv = KvRule::stated;
  HeadDimRule head_dim = HeadDimRule::stated;
  PatternRule pattern = PatternRule::full;
  int period = 0;                    ///< of every_nth_*; the architecture's own default
  std::string_view period_key = {};  ///< config key that overrides it
  MoeRule moe = MoeRule::none;
  MlpWidthRule width = MlpWidthRule::stated;
  /// Of every layer, where it has more than one: LongCat-Flash two attentions, Falcon-H1 attention beside
  /// Mamba. Empty: the pattern names one.
  std::vector<LayerMixer> mixers = {};
  int blocks = 2;        ///< Model::blocks_per_layer
  int dense_beside = 0;  ///< dense MLPs of a layer beside its experts
  bool gated = true;
  bool tied = false;
  bool mla = false;
  bool sinks = false;
  bool alibi = false;                        ///< LayerKind::alibi, unless the config says no
  bool output_gate = false;                  ///< LayerKind::output_gate, unless attn_output_gate says no
  std::int64_t sliding_kv_factor = 1;        ///< KV heads of sliding layers over those of full ones, where no
                                             ///< key states them
  bool layer_inputs = false;                 ///< hidden_size_per_layer_input, num_kv_shared_layers (Gemma 4)
  std::vector<std::string_view> cycle = {};  ///< block_types of the config class
  std::string_view attention_window = {};    ///< key of the window that every softmax layer has
  std::optional<std::int64_t> default_window = {};  ///< of the config class, when the key is absent
  std::optional<LinearStyle> linear = {};
  ParameterDetails details = {};
};

/// What the config class of that family sets where a nested config leaves keys out; empty for others.
[[nodiscard]] Json class_defaults(std::string_view model_type);

/// The tables of families; `find` looks in all of them.
[[nodiscard]] std::vector<Family> dense_families();
[[nodiscard]] std::vector<Family> mixed_families();

/// Why a family cannot be planned as a decoder of this kind; empty for all others.
[[nodiscard]] std::string_view unplannable(std::string_view model_type);

/// Null for a family that is not in the table.
[[nodiscard]] const Family* find(std::string_view model_type);

/// model_type of an architecture whose configs leave model_type out; empty if there is none.
[[nodiscard]] std::string model_type_of_architecture(std::string_view architecture);

}  // namespace usp::family
