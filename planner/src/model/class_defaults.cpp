// SPDX-License-Identifier: Apache-2.0
// Defaults of the config classes of Hugging Face transformers. A config that is nested in another one is
// saved without the keys that equal them.
#include "family.hpp"

#include "usp/base/error.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

namespace usp::family {
namespace {

constexpr std::size_t max_names = 4;

struct ClassDefaults {
  std::array<std::string_view, max_names> names;  // the model_type values that share them; the rest is empty
  const char* json;
};

constexpr ClassDefaults all_defaults[] = {
    {{"llama"},
     R"({"vocab_size":32000,"hidden_size":4096,"intermediate_size":11008,"num_hidden_layers":32,
         "num_attention_heads":32,"tie_word_embeddings":false})"},
    {{"mistral"},
     R"({"vocab_size":32000,"hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,
         "num_attention_heads":32,"num_key_value_heads":8,"sliding_window":4096,"tie_word_embeddings":false})"},
    {{"mixtral"},
     R"({"vocab_size":32000,"hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,
         "num_attention_heads":32,"num_key_value_heads":8,"num_local_experts":8,"num_experts_per_tok":2,
         "tie_word_embeddings":false})"},
    {{"phi3"},
     R"({"vocab_size":32064,"hidden_size":3072,"intermediate_size":8192,"num_hidden_layers":32,
         "num_attention_heads":32,"tie_word_embeddings":false})"},
    {{"gemma"},
     R"({"vocab_size":256000,"hidden_size":3072,"intermediate_size":24576,"num_hidden_layers":28,
         "num_attention_heads":16,"num_key_value_heads":16,"head_dim":256,"tie_word_embeddings":true})"},
    {{"gemma2"},
     R"({"vocab_size":256000,"hidden_size":2304,"intermediate_size":9216,"num_hidden_layers":26,
         "num_attention_heads":8,"num_key_value_heads":4,"head_dim":256,"sliding_window":4096,
         "attn_logit_softcapping":50.0,"tie_word_embeddings":true})"},
    {{"gemma3_text", "gemma3"},
     R"({"vocab_size":262208,"hidden_size":2304,"intermediate_size":9216,"num_hidden_layers":26,
         "num_attention_heads":8,"num_key_value_heads":4,"head_dim":256,"sliding_window":4096,
         "tie_word_embeddings":true})"},
    {{"qwen2"},
     R"({"vocab_size":151936,"hidden_size":4096,"intermediate_size":22016,"num_hidden_layers":32,
         "num_attention_heads":32,"num_key_value_heads":32,"max_window_layers":28,"tie_word_embeddings":false})"},
    {{"qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"},
     R"({"vocab_size":152064,"hidden_size":8192,"intermediate_size":29568,"num_hidden_layers":80,
         "num_attention_heads":64,"num_key_value_heads":8,"max_window_layers":80,"tie_word_embeddings":false})"},
    {{"qwen3"},
     R"({"vocab_size":151936,"hidden_size":4096,"intermediate_size":22016,"num_hidden_layers":32,
         "num_attention_heads":32,"num_key_value_heads":32,"head_dim":128,"tie_word_embeddings":false})"},
    {{"qwen3_vl_text"},
     R"({"vocab_size":151936,"hidden_size":4096,"intermediate_size":22016,"num_hidden_layers":32,
         "num_attention_heads":32,"num_key_value_heads":32,"head_dim":128,"tie_word_embeddings":false})"},
    {{"cohere2"},
     R"({"vocab_size":256000,"hidden_size":8192,"intermediate_size":22528,"num_hidden_layers":40,
         "num_attention_heads":64,"sliding_window":4096,"tie_word_embeddings":true})"},
    {{"llama4_text"},
     R"({"vocab_size":202048,"hidden_size":5120,"intermediate_size":8192,"intermediate_size_mlp":16384,
         "num_hidden_layers":48,"num_attention_heads":40,"num_key_value_heads":8,"head_dim":128,
         "num_local_experts":16,"num_experts_per_tok":1,"interleave_moe_layer_step":1,
         "attention_chunk_size":8192,"tie_word_embeddings":false})"},
    {{"granite"},
     R"({"vocab_size":32000,"hidden_size":4096,"intermediate_size":11008,"num_hidden_layers":32,
         "num_attention_heads":32,"tie_word_embeddings":false})"},
    {{"olmo2"},
     R"({"vocab_size":50304,"hidden_size":4096,"intermediate_size":11008,"num_hidden_layers":32,
         "num_attention_heads":32,"tie_word_embeddings":false})"},
    {{"opt"},
     R"({"vocab_size":50272,"hidden_size":768,"ffn_dim":3072,"num_hidden_layers":12,"num_attention_heads":12,
         "max_position_embeddings":2048,"tie_word_embeddings":true})"},
    {{"gpt2"},
     R"({"vocab_size":50257,"n_embd":768,"n_layer":12,"n_head":12,"n_positions":1024,
         "tie_word_embeddings":true})"},
    {{"mllama_text_model"},
     R"({"vocab_size":128256,"hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":40,
         "num_attention_heads":32,"num_key_value_heads":8,"cross_attention_layers":[3,8,13,18,23,28,33,38],
         "tie_word_embeddings":false})"},
};

}  // namespace

Json class_defaults(std::string_view model_type) {
  if (model_type.empty()) return Json::object();
  for (const ClassDefaults& entry : all_defaults)
    if (std::find(entry.names.begin(), entry.names.end(), model_type) != entry.names.end())
      return Json::parse(entry.json);
  return Json::object();
}

}  // namespace usp::family
