// SPDX-License-Identifier: Apache-2.0
#include "family.hpp"

#include "family_details.hpp"

namespace usp::family {
namespace {

using K = KvRule;
using H = HeadDimRule;
using P = PatternRule;
using M = MoeRule;
using W = MlpWidthRule;

std::vector<Family> llama_like() {
  std::vector<Family> f;
  f.push_back(
      {.names = {"llama"}, .kv = K::equals_heads, .head_dim = H::hidden_over_heads, .details = rms()});
  f.push_back({.names = {"mistral"},
               .head_dim = H::hidden_over_heads,
               .pattern = P::window_all,
               .default_window = 4096,
               .details = rms()});
  f.push_back({.names = {"mixtral"},
               .head_dim = H::hidden_over_heads,
               .pattern = P::window_all,
               .moe = M::all_layers,
               .details = rms()});
  f.push_back({.names = {"phi3"},
               .kv = K::equals_heads,
               .head_dim = H::hidden_over_heads,
               .pattern = P::window_all,
               .details = rms()});
  f.push_back({.names = {"olmo2"},
               .kv = K::equals_heads,
               .head_dim = H::hidden_over_heads,
               .details = rms(2, QkNorm::projection)});
  f.push_back({.names = {"chatglm"}, .kv = K::group_num, .details = rms()});
  f.push_back({.names = {"llama4_text", "llama4"},
               .kv = K::equals_heads,
               .head_dim = H::hidden_over_heads,
               .pattern = P::chunked,
               .period = 4,
               .period_key = "no_rope_layer_interval",
               .moe = M::llama4,
               .details = rms()});
  return f;
}

std::vector<Family> qwen() {
  std::vector<Family> f;
  f.push_back({.names = {"qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"},
               .head_dim = H::hidden_over_heads,
               .pattern = P::window_qwen,
               .details = qkv_biased(rms())});
  f.push_back({.names = {"qwen2_moe"},
               .head_dim = H::hidden_over_heads,
               .pattern = P::window_qwen,
               .moe = M::qwen_step,
               .details = qkv_biased(rms())});
  f.push_back({.names = {"qwen3", "qwen3_vl_text", "qwen3_vl"},
               .pattern = P::window_qwen,
               .details = rms(2, QkNorm::per_head)});
  f.push_back({.names = {"qwen3_moe", "qwen3_vl_moe_text", "qwen3_vl_moe"},
               .head_dim = H::hidden_over_heads,
               .pattern = P::window_qwen,
               .moe = M::qwen_step,
               .details = rms(2, QkNorm::per_head)});
  const Family hybrid{.names = {},
                      .pattern = P::every_nth_softmax,
                      .period = 4,
                      .period_key = "full_attention_interval",
                      .output_gate = true,
                      .linear = LinearStyle::gated_delta,
                      .details = rms(2, QkNorm::per_head)};
  f.push_back(hybrid);
  f.back().names = {"qwen3_5_text", "qwen3_5"};
  f.push_back(hybrid);
  f.back().names = {"qwen3_next", "qwen3_5_moe_text", "qwen3_5_moe"};
  f.back().moe = M::qwen_step;
  return f;
}

std::vector<Family> mixtures() {
  std::vector<Family> f;
  f.push_back({.names = {"deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25"},
               .moe = M::deepseek,
               .mla = true,
               .details = rms()});
  f.push_back({.names = {"kimi_linear"},
               .pattern = P::kimi_linear,
               .moe = M::deepseek,
               .mla = true,
               .linear = LinearStyle::kda,
               .details = rms()});
  f.push_back(
      {.names = {"glm4_moe"}, .head_dim = H::hidden_over_heads, .moe = M::deepseek, .details = rms()});
  f.push_back({.names = {"minimax_m2"}, .moe = M::all_layers, .details = rms()});
  f.push_back({.names = {"minimax", "minimax_text_01", "minimax_m1"},
               .head_dim = H::hidden_over_heads,
               .pattern = P::minimax_list,
               .moe = M::all_layers,
               .linear = LinearStyle::lightning,
               .details = rms()});
  f.push_back({.names = {"gpt_oss"},
               .pattern = P::every_nth_full,
               .period = 2,
               .moe = M::all_layers,
               .sinks = true,
               .details = rms()});
  f.back().details.mlp_bias = true;
  return f;
}

std::vector<Family> gemma() {
  std::vector<Family> f;
  f.push_back({.names = {"gemma"}, .tied = true, .details = rms()});
  f.push_back(
      {.names = {"gemma2"}, .pattern = P::every_nth_full, .period = 2, .tied = true, .details = rms(4)});
  f.push_back({.names = {"gemma3_text", "gemma3"},
               .pattern = P::every_nth_full,
               .period = 6,
               .period_key = "sliding_window_pattern",
               .tied = true,
               .details = rms(4, QkNorm::per_head)});
  f.push_back({.names = {"gemma4_text", "gemma4", "gemma4_unified_text", "gemma4_unified"},
               .pattern = P::every_nth_full,
               .period = 6,
               .moe = M::by_keys,
               .tied = true,
               .layer_inputs = true,
               .details = rms(4, QkNorm::per_head)});
  f.push_back({.names = {"cohere2"},
               .kv = K::equals_heads,
               .head_dim = H::hidden_over_heads,
               .pattern = P::every_nth_full,
               .period = 4,
               .period_key = "sliding_window_pattern",
               .tied = true,
               .details = rms(1)});
  f.push_back({.names = {"cohere"},
               .kv = K::equals_heads,
               .head_dim = H::hidden_over_heads,
               .tied = true,
               .details = rms(1)});
  return f;
}

/// The generation before Llama: LayerNorm with shift, two MLP matrices, heads = KV heads or one KV head.
std::vector<Family> gpt_like() {
  std::vector<Family> f;
  const Family base{.names = {},
                    .kv = K::equals_heads,
                    .head_dim = H::hidden_over_heads,
                    .width = W::four_hidden_if_absent,
                    .gated = false,
                    .tied = true,
                    .details = layer_norm(true)};
  f.push_back(base);
  f.back().names = {"gpt2"};
  f.push_back(base);
  f.back().names = {"gpt_bigcode"};
  f.back().kv = K::multi_query_flag;
  f.push_back(base);
  f.back().names = {"bloom"};
  f.back().alibi = true;
  f.back().width = W::four_hidden;
  f.back().details.extra_norms = 2;  // one more on the embedding
  f.push_back(base);
  f.back().names = {"falcon", "RefinedWeb", "RefinedWebModel"};
  f.back().kv = K::falcon;
  f.back().details = layer_norm(false);
  f.push_back(base);
  f.back().names = {"gpt_neox"};
  f.back().width = W::stated;
  f.back().tied = false;
  f.push_back(base);
  f.back().names = {"starcoder2"};
  f.back().kv = K::stated;
  f.back().width = W::stated;
  f.back().pattern = P::window_all;
  return f;
}

}  // namespace

const Family* find(std::string_view model_type) {
  static const std::vector<Family> table = [] {
    std::vector<Family> all;
    for (auto part :
         {llama_like(), qwen(), mixtures(), gemma(), gpt_like(), dense_families(), mixed_families()})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  }();
  for (const auto& entry : table)
    for (const auto name : entry.names)
      if (name == model_type) return &entry;
  return nullptr;
}

std::string_view unplannable(std::string_view model_type) {
  struct Reason {
    std::string_view name, why;
  };
  constexpr std::string_view no_attention = "no layer has attention, which is what a plan distributes";
  constexpr std::string_view shared = "several layers use the weights of one attention block";
  static constexpr Reason reasons[] = {
      {"mamba", no_attention},
      {"mamba2", no_attention},
      {"falcon_mamba", no_attention},
      {"rwkv", no_attention},
      {"xlstm", no_attention},
      {"zamba", shared},
      {"zamba2", shared},
      {"jetmoe", "the projections of its attention are experts too"},
      {"diffllama", "each head subtracts two attentions with values of twice the width"},
      {"gemma3n", "layers share keys and values and have inputs of their own"},
      {"gemma3n_text", "layers share keys and values and have inputs of their own"},
      {"blt", "it attends over patches of bytes"}};
  for (const Reason& reason : reasons)
    if (reason.name == model_type) return reason.why;
  return "";
}

std::string model_type_of_architecture(std::string_view architecture) {
  if (architecture == "ChatGLMModel" || architecture == "ChatGLMForConditionalGeneration") return "chatglm";
  if (architecture == "DeepseekV3ForCausalLM") return "deepseek_v3";
  if (architecture == "LlamaForCausalLM") return "llama";
  if (architecture == "GPT2LMHeadModel") return "gpt2";
  if (architecture == "BloomForCausalLM") return "bloom";
  return "";
}

}  // namespace usp::family
