// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/parameters.hpp"

#include "usp/base/error.hpp"
#include "usp/planner/model_config.hpp"

#include <gtest/gtest.h>

namespace usp {
namespace {

ParameterCount preset(const char* name) {
  return count_parameters(load_model(name));
}

// Totals of the published checkpoints, which count every tensor: exact.
TEST(Parameters, EqualThePublishedCheckpoints) {
  EXPECT_EQ(preset("llama-3.1-8b").total, 8'030'261'248);
  EXPECT_EQ(preset("llama-3.1-405b").total, 405'853'388'800);
  EXPECT_EQ(preset("qwen3-8b").total, 8'190'735'360);
  EXPECT_EQ(preset("gemma-2-27b").total, 27'227'128'320);
  EXPECT_EQ(preset("chatglm3-6b").total, 6'243'584'000);
  EXPECT_EQ(preset("mixtral-8x7b").total, 46'702'792'704);
  EXPECT_EQ(preset("llama-2-7b").total, 6'738'415'616);
  EXPECT_EQ(preset("llama-2-13b").total, 13'015'864'320);
  EXPECT_EQ(preset("llama-2-70b").total, 68'976'648'192);
  EXPECT_EQ(preset("llama-3.1-70b").total, 70'553'706'496);
  EXPECT_EQ(preset("llama-3.3-70b").total, 70'553'706'496);
  EXPECT_EQ(preset("llama-3.2-1b").total, 1'235'814'400);
  EXPECT_EQ(preset("llama-3.2-3b").total, 3'212'749'824);
  EXPECT_EQ(preset("qwen2.5-7b").total, 7'615'616'512);
  EXPECT_EQ(preset("qwen2.5-14b").total, 14'770'033'664);
  EXPECT_EQ(preset("qwen2.5-32b").total, 32'763'876'352);
  EXPECT_EQ(preset("qwen2.5-72b").total, 72'706'203'648);
  EXPECT_EQ(preset("qwen3-4b").total, 4'022'468'096);
  EXPECT_EQ(preset("qwen3-14b").total, 14'768'307'200);
  EXPECT_EQ(preset("qwen3-32b").total, 32'762'123'264);
  EXPECT_EQ(preset("qwen3-30b-a3b").total, 30'532'122'624);
  EXPECT_EQ(preset("mistral-7b").total, 7'248'023'552);
  EXPECT_EQ(preset("mistral-nemo-12b").total, 12'247'782'400);
  EXPECT_EQ(preset("mistral-small-24b").total, 23'572'403'200);
  EXPECT_EQ(preset("mistral-large-123b").total, 122'610'069'504);
  EXPECT_EQ(preset("phi-4").total, 14'659'507'200);
}

// Published as rounded figures: half a unit of their last digit is allowed.
TEST(Parameters, AgreeWithRoundedFigures) {
  const auto near = [](std::optional<std::int64_t> count, double billions, double half_digit) {
    ASSERT_TRUE(count);
    EXPECT_NEAR(static_cast<double>(*count) / 1e9, billions, half_digit);
  };
  near(preset("mixtral-8x7b").active, 12.9, 0.05);
  near(preset("deepseek-v3").total, 671, 0.5);
  near(preset("deepseek-v3").active, 37, 0.6);  // the report's 37B leaves the input embedding (0.93B) out
  near(preset("qwen3-235b-a22b").total, 235, 0.5);
  near(preset("qwen3-235b-a22b").active, 22, 0.5);
  near(preset("gpt-oss-120b").total, 116.83, 0.005);
  near(preset("gpt-oss-20b").total, 20.91, 0.005);
  near(preset("llama-4-scout").active, 17, 0.5);
  near(preset("minimax-m2.5").total, 229, 0.5);
  near(preset("deepseek-r1").total, 671, 0.5);
  near(preset("kimi-k2").total, 1000, 50);
  near(preset("mixtral-8x22b").total, 141, 0.5);
  near(preset("llama-4-maverick").total, 400, 1);
  near(preset("qwen3-coder-480b-a35b").total, 480, 0.5);
  near(preset("qwen3.5-122b-a10b").total, 122, 0.5);
  near(preset("qwen3.5-35b-a3b").total, 35, 0.5);
  near(preset("qwen3.5-397b-a17b").total, 397, 1.5);
  near(preset("kimi-k2.5").total, 1026, 0.5);
  near(preset("qwen3.5-27b").total, 27, 0.5);
}

// The gpt-oss model card counts the unembedding as active, not the embedding.
TEST(Parameters, GptOssActiveAsItsCardCounts) {
  const auto card = [](const ParameterCount& count) {
    return static_cast<double>(*count.active - *count.embedding) / 1e9;
  };
  EXPECT_NEAR(card(preset("gpt-oss-120b")), 5.13, 0.005);
  EXPECT_NEAR(card(preset("gpt-oss-20b")), 3.61, 0.005);
}

TEST(Parameters, ComponentsSumToTheTotal) {
  for (const char* name : {"llama-3.1-8b", "deepseek-v3", "qwen3.5-27b", "gpt-oss-20b"}) {
    const ParameterCount c = preset(name);
    EXPECT_EQ(*c.embedding + *c.lm_head + c.attention + c.linear_attention + *c.mlp + *c.experts + c.norms,
              *c.total);
    std::int64_t layers = 0;
    for (const auto& layer : c.layers) layers += *layer.total();
    const std::int64_t hidden = load_model(name).hidden;
    EXPECT_EQ(layers + *c.embedding + *c.lm_head + hidden, *c.total) << name;
  }
}

TEST(Parameters, Gpt2AndBloom) {
  const auto count = [](const char* text) { return count_parameters(read_model_config(text, "x")).total; };
  EXPECT_EQ(
      count(
          R"({"model_type":"gpt2","n_embd":768,"n_layer":12,"n_head":12,"vocab_size":50257,"n_positions":1024})"),
      124'439'808);
  EXPECT_EQ(
      count(R"({"model_type":"bloom","hidden_size":4096,"n_layer":30,"n_head":32,"vocab_size":250880})"),
      7'069'016'064);
  EXPECT_EQ(
      count(R"({"model_type":"falcon","hidden_size":4544,"num_hidden_layers":32,"num_attention_heads":71,
                      "vocab_size":65024,"multi_query":true,"parallel_attn":true})"),
      6'921'720'704);
}

TEST(Parameters, UnknownStaysUnknown) {
  const ParameterCount c = count_parameters(read_model_config(
      R"({"model_type":"other","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":16})",
      "x"));
  EXPECT_FALSE(c.total);
  EXPECT_FALSE(c.embedding);
  EXPECT_FALSE(c.mlp);
  EXPECT_EQ(c.attention, 2 * 64 * 16 * (4 + 2 + 2 + 4));
  EXPECT_FALSE(c.notes.empty());
}

TEST(Parameters, MiniMaxText01) {
  std::string list = "0";
  for (int i = 1; i < 80; ++i) list += i % 8 == 7 ? ",1" : ",0";
  const ParameterCount c = count_parameters(read_model_config(
      R"({"model_type":"minimax_text_01","hidden_size":6144,"num_hidden_layers":80,"num_attention_heads":64,"num_key_value_heads":8,
          "head_dim":128,"intermediate_size":9216,"num_local_experts":32,"num_experts_per_tok":2,"vocab_size":200064,
          "attn_type_list":[)" +
          list + "]}",
      "x"));
  EXPECT_NEAR(static_cast<double>(*c.total) / 1e9, 456, 0.5);
  // 45.9B activated, as its report counts: without embedding and head.
  EXPECT_NEAR(static_cast<double>(*c.active - *c.embedding - *c.lm_head) / 1e9, 45.9, 0.05);
}

TEST(Parameters, RefusesWhatCannotBe) {
  EXPECT_THROW(
      static_cast<void>(count_parameters(read_model_config(
          R"({"model_type":"mixtral","hidden_size":16777216,"num_hidden_layers":4096,"num_attention_heads":64,
                       "num_key_value_heads":8,"intermediate_size":16777216,"num_local_experts":1048576,"num_experts_per_tok":2})",
          "x"))),
      InvalidInput);
}

}  // namespace
}  // namespace usp
