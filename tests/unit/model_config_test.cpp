// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/model_config.hpp"

#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/base/json.hpp"

#include <gtest/gtest.h>

namespace usp {
namespace {

Model config(const std::string& name) {
  return load_model(std::string(USP_TEST_DATA) + "/hf_config/" + name + ".json");
}
Model inline_config(const std::string& text) {
  return read_model_config(text, "inline.json");
}
Json json_of(const Model& model) {
  return parse_json(model_json(model), "model");
}

struct Expected {
  const char* file;
  std::int64_t layers, hidden, vocab, query, kv, qk, v, attention_layers;
  std::vector<std::int64_t> even, even_linear;
};

void PrintTo(const Expected& e, std::ostream* out) {
  *out << e.file;
}

class EveryConfig : public testing::TestWithParam<Expected> {};

TEST_P(EveryConfig, HasTheValuesOfItsModel) {
  const Expected& e = GetParam();
  const Model model = config(e.file);
  EXPECT_EQ(model.layers, e.layers);
  EXPECT_EQ(model.hidden, e.hidden);
  EXPECT_EQ(model.vocab.value_or(0), e.vocab);
  for (const auto& kind : model.kinds) {
    if (kind.is_linear()) continue;
    EXPECT_EQ(kind.query_heads, e.query);
    EXPECT_EQ(kind.kv_heads, e.kv);
    EXPECT_EQ(kind.head_dim_qk, e.qk);
    EXPECT_EQ(kind.head_dim_v, e.v);
  }
  EXPECT_EQ(model.attention_layers(), e.attention_layers);
  EXPECT_EQ(even_ulysses_degrees(model), e.even);
  EXPECT_EQ(even_ulysses_degrees_linear(model), e.even_linear);
}

const std::vector<std::int64_t> to32 = {1, 2, 4, 8, 16, 32}, to64 = {1, 2, 4, 8, 16, 32, 64},
                                to128 = {1, 2, 4, 8, 16, 32, 64, 128};

INSTANTIATE_TEST_SUITE_P(
    Files, EveryConfig,
    testing::Values(
        Expected{"meta-llama--Meta-Llama-3.1-8B", 32, 4096, 128256, 32, 8, 128, 128, 32, to32, {}},
        Expected{"meta-llama--Meta-Llama-3.1-405B", 126, 16384, 128256, 128, 8, 128, 128, 126, to128, {}},
        Expected{"meta-llama--Llama-4-Scout-17B-16E-Instruct",
                 48,
                 5120,
                 202048,
                 40,
                 8,
                 128,
                 128,
                 48,
                 {1, 2, 4, 8, 40},
                 {}},
        Expected{"mistralai--Mixtral-8x7B-v0.1", 32, 4096, 32000, 32, 8, 128, 128, 32, to32, {}},
        Expected{"Qwen--Qwen3-8B", 36, 4096, 151936, 32, 8, 128, 128, 36, to32, {}},
        Expected{"Qwen--Qwen3-235B-A22B", 94, 4096, 151936, 64, 4, 128, 128, 94, to64, {}},
        Expected{"Qwen--Qwen3-VL-8B-Instruct", 36, 4096, 151936, 32, 8, 128, 128, 36, to32, {}},
        Expected{"Qwen--Qwen3.5-27B",
                 64,
                 5120,
                 248320,
                 24,
                 4,
                 256,
                 256,
                 16,
                 {1, 2, 4, 8, 12, 24},
                 {1, 2, 4, 8, 16}},
        Expected{"chatglm3-6b", 28, 4096, 65024, 32, 2, 128, 128, 28, to32, {}},
        Expected{"deepseek-ai--DeepSeek-V3", 61, 7168, 129280, 128, 128, 192, 128, 61, to128, {}},
        Expected{"moonshotai--Kimi-K2.5", 61, 7168, 163840, 64, 64, 192, 128, 61, to64, {}},
        Expected{"gemma-2-27b", 46, 4608, 256000, 32, 16, 128, 128, 46, to32, {}},
        Expected{
            "MiniMaxAI--MiniMax-M2.5", 62, 3072, 200064, 48, 8, 128, 128, 62, {1, 2, 4, 8, 16, 24, 48}, {}},
        Expected{"openai--gpt-oss-20b", 24, 2880, 201088, 64, 8, 64, 64, 24, to64, {}},
        Expected{"openai--gpt-oss-120b", 36, 2880, 201088, 64, 8, 64, 64, 36, to64, {}},
        Expected{"starcoder2-3b_fields", 30, 3072, 0, 24, 2, 128, 128, 30, {1, 2, 4, 6, 8, 12, 24}, {}}));

TEST(ModelConfig, PresetsReadAsTheirFullConfigs) {
  const std::pair<const char*, const char*> pairs[] = {
      {"llama-3.1-8b", "meta-llama--Meta-Llama-3.1-8B"},
      {"llama-3.1-405b", "meta-llama--Meta-Llama-3.1-405B"},
      {"llama-4-scout", "meta-llama--Llama-4-Scout-17B-16E-Instruct"},
      {"mixtral-8x7b", "mistralai--Mixtral-8x7B-v0.1"},
      {"qwen3-8b", "Qwen--Qwen3-8B"},
      {"qwen3-235b-a22b", "Qwen--Qwen3-235B-A22B"},
      {"qwen3-vl-8b", "Qwen--Qwen3-VL-8B-Instruct"},
      {"qwen3.5-27b", "Qwen--Qwen3.5-27B"},
      {"chatglm3-6b", "chatglm3-6b"},
      {"deepseek-v3", "deepseek-ai--DeepSeek-V3"},
      {"kimi-k2.5", "moonshotai--Kimi-K2.5"},
      {"gemma-2-27b", "gemma-2-27b"},
      {"minimax-m2.5", "MiniMaxAI--MiniMax-M2.5"},
      {"gpt-oss-20b", "openai--gpt-oss-20b"},
      {"gpt-oss-120b", "openai--gpt-oss-120b"}};
  for (const auto& [preset, file] : pairs) {
    Json left = json_of(load_model(preset)), right = json_of(config(file));
    for (const char* key : {"name", "notes"}) left.erase(key), right.erase(key);
    EXPECT_EQ(left, right) << preset;
  }
}

TEST(ModelConfig, LayerKindsFollowTheArchitecture) {
  const Model gemma = config("gemma-2-27b");
  ASSERT_EQ(gemma.kinds.size(), 2U);
  EXPECT_EQ(gemma.kinds[0].kind, LayerMixer::sliding);
  EXPECT_EQ(gemma.kinds[0].window, 4096);
  EXPECT_EQ(gemma.kinds[0].softcap, 50.0);
  EXPECT_DOUBLE_EQ(*gemma.kinds[0].scale, 1.0 / 12);  // of 144, not of head dim 128
  EXPECT_FALSE(gemma.kinds[0].alibi);
  EXPECT_EQ(gemma.kinds[0].layers[1], 2);
  const Model scout = config("meta-llama--Llama-4-Scout-17B-16E-Instruct");
  EXPECT_EQ(scout.kinds[0].kind, LayerMixer::chunked);
  EXPECT_EQ(scout.kinds[0].window, 8192);
  EXPECT_EQ(scout.kinds[1].layers, (std::vector<int>{3, 7, 11, 15, 19, 23, 27, 31, 35, 39, 43, 47}));
  const Model oss = config("openai--gpt-oss-20b");
  EXPECT_EQ(oss.kinds[0].kind, LayerMixer::sliding);
  EXPECT_EQ(oss.kinds[0].window, 128);
  EXPECT_EQ(oss.kinds[0].layers.front(), 0);
  EXPECT_TRUE(oss.kinds[0].sinks);
  const Model hybrid = config("Qwen--Qwen3.5-27B");
  EXPECT_EQ(hybrid.kinds[0].kind, LayerMixer::linear);
  EXPECT_EQ(hybrid.kinds[0].linear->key_heads, 16);
  EXPECT_EQ(hybrid.kinds[0].linear->value_heads, 48);
  EXPECT_EQ(hybrid.kinds[1].layers.front(), 3);
  EXPECT_TRUE(hybrid.kinds[1].output_gate);
}

TEST(ModelConfig, DerivedValuesAreListed) {
  const auto listed = [](const Model& model, const std::string& part) {
    for (const auto& sentence : model.derived)
      if (sentence.find(part) != std::string::npos) return true;
    return false;
  };
  EXPECT_TRUE(listed(config("meta-llama--Meta-Llama-3.1-8B"), "head_dim = hidden / heads = 128"));
  EXPECT_TRUE(listed(config("gemma-2-27b"), "rule of gemma2"));
  EXPECT_TRUE(listed(config("meta-llama--Llama-4-Scout-17B-16E-Instruct"), "rule of llama4_text"));
  EXPECT_TRUE(config("Qwen--Qwen3-8B").derived.empty());
}

TEST(ModelConfig, OldNamesAndFlags) {
  const Model gpt2 =
      inline_config(R"({"model_type":"gpt2","n_embd":768,"n_layer":12,"n_head":12,"vocab_size":50257})");
  EXPECT_EQ(gpt2.kinds[0].kv_heads, 12);
  EXPECT_EQ(gpt2.kinds[0].head_dim_qk, 64);
  EXPECT_EQ(gpt2.dense_intermediate, 3072);
  const auto falcon = [](const std::string& rest) {
    return inline_config(
        R"({"model_type":"falcon","hidden_size":8192,"num_hidden_layers":2,"num_attention_heads":128)" +
        rest + "}");
  };
  EXPECT_EQ(falcon(R"(,"multi_query":true)").kinds[0].kv_heads, 1);
  EXPECT_EQ(falcon(R"(,"multi_query":false)").kinds[0].kv_heads, 128);
  EXPECT_EQ(falcon(R"(,"new_decoder_architecture":true,"num_kv_heads":8)").kinds[0].kv_heads, 8);
  EXPECT_EQ(inline_config(
                R"({"model_type":"gpt_bigcode","n_embd":6144,"n_layer":2,"n_head":48,"multi_query":true})")
                .kinds[0]
                .kv_heads,
            1);
  const auto glm = [](const std::string& rest) {
    return inline_config(
        R"({"model_type":"chatglm","hidden_size":4096,"num_layers":2,"num_attention_heads":32,"kv_channels":128)" +
        rest + "}");
  };
  EXPECT_EQ(glm(R"(,"multi_query_attention":true,"multi_query_group_num":2)").kinds[0].kv_heads, 2);
  EXPECT_EQ(glm(R"(,"multi_query_attention":false,"multi_query_group_num":2)").kinds[0].kv_heads, 32);
}

constexpr const char* qwen2 =
    R"({"model_type":"qwen2","hidden_size":64,"num_hidden_layers":4,"num_attention_heads":4,
  "num_key_value_heads":2,"sliding_window":128,)";

TEST(ModelConfig, WindowsCountOnlyWhenSwitchedOn) {
  const Model off =
      inline_config(std::string(qwen2) + R"("use_sliding_window":false,"max_window_layers":2})");
  EXPECT_EQ(off.kinds.size(), 1U);
  EXPECT_EQ(off.kinds[0].kind, LayerMixer::softmax);
  const Model on = inline_config(std::string(qwen2) + R"("use_sliding_window":true,"max_window_layers":3})");
  ASSERT_EQ(on.kinds.size(), 2U);
  EXPECT_EQ(on.kinds[1].layers, std::vector<int>{3});
  EXPECT_EQ(on.kinds[1].window, 128);
  const auto mistral = [](const std::string& rest) {
    return inline_config(
               R"({"model_type":"mistral","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2)" +
               rest + "}")
        .kinds[0];
  };
  EXPECT_EQ(mistral(R"(,"sliding_window":null)").kind, LayerMixer::softmax);
  EXPECT_EQ(mistral(R"(,"sliding_window":32)").window, 32);
  EXPECT_EQ(mistral("").window, 4096);
}

TEST(ModelConfig, KimiLinearListsCountFromOne) {
  const Model kimi = inline_config(
      R"({"model_type":"kimi_linear","hidden_size":2304,"num_hidden_layers":4,"num_attention_heads":32,
    "kv_lora_rank":512,"q_lora_rank":null,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"head_dim":72,
    "num_experts":256,"num_experts_per_token":8,"moe_intermediate_size":1024,"intermediate_size":9216,"first_k_dense_replace":1,
    "linear_attn_config":{"full_attn_layers":[4],"kda_layers":[1,2,3],"num_heads":32,"head_dim":128,"short_conv_kernel_size":4}})");
  EXPECT_EQ(kimi.kinds[0].layers, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(kimi.kinds[1].layers, std::vector<int>{3});
  EXPECT_EQ(kimi.kinds[1].head_dim_qk, 192);
  EXPECT_EQ(kimi.moe->layers, (std::vector<int>{1, 2, 3}));
}

TEST(ModelConfig, DistinctValuesBecomeAList) {
  const Json j = json_of(inline_config(R"({"model_type":"my_model","hidden_size":64,"num_hidden_layers":3,
    "num_attention_heads":[4,4,2],"num_key_value_heads":2,"head_dim":16,"vocab_size":10})"));
  EXPECT_EQ(j["query_heads"], Json::array({4, 2}));
  EXPECT_EQ(j["kv_heads"], 2);
  EXPECT_EQ(j["ulysses_even"], Json::array({1, 2}));
}

struct UnsupportedReason {
  const char* text;
  const char* token;
};

TEST(ModelConfig, RefusesByNamingTheKey) {
  const std::string llama =
      R"("model_type":"llama","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4)";
  const std::string other =
      R"("model_type":"other","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4)";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"model_type":"llama"})", "/hidden_size"},
      {R"({"text_config":{"model_type":"other"}})", "/text_config/hidden_size"},
      {"{" + other + "}", "/num_key_value_heads"},
      {"{" + other + R"(,"num_key_value_heads":2,"sliding_window_pattern":"LX"})", "/sliding_window_pattern"},
      {"{" + other + R"(,"num_key_value_heads":2,"head_dim":16,"sliding_window":8})", "/layer_types"},
      {"{" + llama + R"(,"layer_types":["full_attention"]})", "/layer_types"},
      {"{" + llama + R"(,"layer_types":["full_attention","wonder"]})", "/layer_types"},
      {"{" + llama + R"(,"layer_types":["full_attention","sliding_attention"]})", "/sliding_window"},
      {"{" + llama + R"(,"n_head":8})", "/n_head"},
      {"{" + llama + R"(,"num_key_value_heads":3})", "/num_attention_heads"},
      {"{" + llama + R"(,"num_key_value_heads":"2"})", "/num_key_value_heads"},
      {"{" + llama + R"(,"vocab_size":-1})", "/vocab_size"},
      {R"({"model_type":"llama","hidden_size":65,"num_hidden_layers":2,"num_attention_heads":4})",
       "/head_dim"},
      {R"({"model_type":"minimax","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4})",
       "/attn_type_list"},
  };
  for (const auto& [text, token] : cases) {
    try {
      static_cast<void>(inline_config(text));
      ADD_FAILURE() << "accepted: " << text;
    } catch (const InvalidInput& error) {
      EXPECT_EQ(error.where().token, token) << text << "\n" << error.what();
      EXPECT_EQ(error.where().file, "inline.json");
    }
  }
}

TEST(ModelConfig, RefusesAnotherToolsKeys) {
  for (const char* name :
       {"llm-analysis_gpt2", "llm-analysis_bigscience_bloom-7b1", "llm-analysis_megatron-lm-530b"}) {
    try {
      static_cast<void>(config(name));
      ADD_FAILURE() << name;
    } catch (const MissingValue& error) {
      EXPECT_EQ(error.key(), "hidden_size");
      EXPECT_NE(std::string(error.what()).find("hidden_dim"), std::string::npos);
    }
  }
}

TEST(ModelConfig, ContradictoryPatternIsRefused) {
  Json j = parse_json(read_file(std::string(USP_TEST_DATA) + "/hf_config/Qwen--Qwen3.5-27B.json"), "x");
  j["text_config"]["full_attention_interval"] = 8;
  EXPECT_THROW(static_cast<void>(inline_config(j.dump())), InvalidInput);
  j["text_config"]["full_attention_interval"] = 4;
  j["text_config"].erase("layer_types");
  EXPECT_EQ(inline_config(j.dump()).attention_layers(), 16);
}

}  // namespace
}  // namespace usp
