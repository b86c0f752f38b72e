// SPDX-License-Identifier: Apache-2.0
// Configs of published models, written from their field values, with the sizes that their authors state.
#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/base/json.hpp"
#include "usp/planner/model_config.hpp"
#include "usp/planner/parameters.hpp"

#include <gtest/gtest.h>

#include <set>

namespace usp {
namespace {

const Json& published() {
  static const Json table =
      parse_json(read_file(std::string(USP_TEST_DATA) + "/model_families.json"), "model_families.json");
  return table;
}

Model read(const Json& config, const std::vector<std::string>& keys = {}) {
  return read_model_config(config.dump(), "config.json", keys);
}

bool says(const std::vector<std::string>& sentences, const std::string& part) {
  return std::any_of(sentences.begin(), sentences.end(),
                     [&](const std::string& text) { return text.find(part) != std::string::npos; });
}

const LayerKind& first_softmax(const Model& model) {
  return *std::find_if(model.kinds.begin(), model.kinds.end(),
                       [](const LayerKind& k) { return k.has_softmax(); });
}

TEST(ModelFamilies, HaveTheSizesOfTheirModels) {
  std::set<std::string> families;
  for (const Json& row : published()) {
    SCOPED_TRACE(row["name"].get<std::string>());
    const Model model = read(row["config"]);
    families.insert(model.family);
    EXPECT_EQ(model.layers, row["layers"]);
    EXPECT_EQ(model.attention_layers(), row["attention_layers"]);
    const LayerKind& kind = first_softmax(model);
    EXPECT_EQ(kind.query_heads, row["query_heads"]);
    EXPECT_EQ(kind.kv_heads, row["kv_heads"]);
    EXPECT_EQ(kind.head_dim_qk, row["head_dim_qk"]);
    EXPECT_EQ(kind.head_dim_v, row["head_dim_v"]);
    EXPECT_FALSE(says(model.notes, "not read")) << "a key that no rule reads";
    // Qwen2.5-Omni's is no family of its own here and states no gate.
    if (const auto total = count_parameters(model).total)
      EXPECT_NEAR(static_cast<double>(*total) / 1e9 / row["billion_parameters"].get<double>(), 1, 0.01);
    else
      ADD_FAILURE() << "no total";
  }
  EXPECT_GE(families.size(), 60U);
}

/// The object that is the language model.
Json& language(Json& config) {
  Json* part = &config;
  for (const char* name : {"thinker_config", "text_config"})
    if (part->contains(name)) part = &(*part)[name];
  return *part;
}

TEST(ModelFamilies, UnderAnUnknownNameReadTheSameOrAreRefused) {
  int same = 0, refused = 0;
  for (const Json& row : published()) {
    SCOPED_TRACE(row["name"].get<std::string>());
    Json config = row["config"];
    config.erase("model_type");
    language(config)["model_type"] = "unheard_of";
    const Model known = read(row["config"]);
    try {
      const Model unknown = read(config);
      ASSERT_EQ(unknown.kinds.size(), known.kinds.size());
      for (std::size_t k = 0; k < known.kinds.size(); ++k) {
        EXPECT_EQ(unknown.kinds[k].kind, known.kinds[k].kind);
        EXPECT_EQ(unknown.kinds[k].layers, known.kinds[k].layers);
        EXPECT_EQ(unknown.kinds[k].kv_heads, known.kinds[k].kv_heads);
        EXPECT_EQ(unknown.kinds[k].head_dim_qk, known.kinds[k].head_dim_qk);
        EXPECT_EQ(unknown.kinds[k].window, known.kinds[k].window);
      }
      ++same;
    } catch (const InvalidInput&) {
      ++refused;
    }
  }
  EXPECT_GT(same, 40);
  EXPECT_GT(refused, 15);
}

const Json& config_of(const std::string& name) {
  for (const Json& row : published())
    if (row["name"] == name) return row["config"];
  throw UsageError("no row of that name: " + name);
}

TEST(ModelFamilies, MixersThatRunBesideEachOtherAreOneLayer) {
  const Model model = read(config_of("Falcon-H1-7B"));
  ASSERT_EQ(model.kinds.size(), 2U);
  EXPECT_EQ(model.kinds[0].kind, LayerMixer::softmax);
  EXPECT_EQ(model.kinds[1].linear->style, LinearStyle::mamba2);
  EXPECT_EQ(model.kinds[1].linear->value_heads, 24);
  for (const LayerKind& kind : model.kinds) EXPECT_EQ(kind.calls(), 44);
  EXPECT_EQ(model.kinds_of(43), (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(model.mlp_width(0), 12288);
  const std::vector<AlikeLayers> alike = alike_layers(model, 10, 21);
  ASSERT_EQ(alike.size(), 1U);
  EXPECT_EQ(alike.front().count, 11);
  Json wrong = config_of("Falcon-H1-7B");
  wrong["mamba_d_ssm"] = 3073;
  EXPECT_THROW(static_cast<void>(read(wrong)), InvalidInput);
  wrong["mamba_d_ssm"] = 3072;
  wrong["mamba_n_groups"] = 5;
  EXPECT_THROW(static_cast<void>(read(wrong)), InvalidInput);
}

TEST(ModelFamilies, GriffinHasRecurrentLayersAndAWindow) {
  const Model model = read(config_of("RecurrentGemma-2B"));
  ASSERT_EQ(model.kinds.size(), 2U);
  EXPECT_EQ(model.kinds[0].linear->style, LinearStyle::rg_lru);
  EXPECT_EQ(model.kinds[0].linear->value_dim, 256);
  EXPECT_EQ(model.kinds[1].window, 2048);
  EXPECT_EQ(model.kinds[1].layers, (std::vector<int>{2, 5, 8, 11, 14, 17, 20, 23}));
  EXPECT_EQ(model.dense_intermediate, 7680);
  Json config = config_of("RecurrentGemma-2B");
  config.erase("block_types");
  EXPECT_EQ(read(config).attention_layers(), 8) << "its class has the same";
  config["block_types"] = {"recurrent", "recurrent", "attention"};
  config["num_hidden_layers"] = 2;
  EXPECT_EQ(read(config).attention_layers(), 0) << "the list is cut";
}

TEST(ModelFamilies, HybridsWithoutAListOfLayersAreLinearThroughout) {
  Json config = config_of("Bamba-9B");
  config["attn_layer_indices"] = nullptr;
  EXPECT_EQ(read(config).attention_layers(), 0);
}

TEST(ModelFamilies, SlidingLayersOfMiMoHaveTwiceTheKvHeads) {
  Json config = config_of("MiMo-V2-Flash");
  config.erase("swa_num_key_value_heads");
  const Model model = read(config);
  for (const LayerKind& kind : model.kinds)
    EXPECT_EQ(kind.kv_heads, kind.kind == LayerMixer::sliding ? 8 : 4);
}

TEST(ModelFamilies, TwoAttentionsOfALayerAreOneLayer) {
  Json config = config_of("LongCat-Flash");
  const Model model = read(config);
  ASSERT_EQ(model.kinds.size(), 1U);
  EXPECT_EQ(model.kinds.front().layers.size(), 28U);
  EXPECT_EQ(model.kinds.front().per_layer, 2);
  EXPECT_EQ(model.kinds.front().calls(), 56);
  EXPECT_EQ(layer_count_text(model.kinds.front()), "28 x 2");
  EXPECT_EQ(model.moe->layers.size(), 28U);
  EXPECT_EQ(model.moe->shared_intermediate, 2 * 12288) << "both dense MLPs";
  EXPECT_EQ(parse_json(model_json(model), "model")["layer_kinds"][0]["per_layer"], 2);
  config["num_hidden_layers"] = 2 * model.layers;  // its class counts attentions beside num_layers
  EXPECT_EQ(read(config).layers, model.layers);
  config["num_hidden_layers"] = 2 * model.layers + 1;
  EXPECT_THROW(static_cast<void>(read(config)), InvalidInput);
}

TEST(ModelFamilies, ThatAreNoPlainDecodersAreRefusedWithTheReason) {
  const Json plain_sizes = config_of("Llama-3.1-8B");
  for (const char* name :
       {"jetmoe", "zamba", "zamba2", "diffllama", "gemma3n", "gemma3n_text", "mamba", "mamba2", "rwkv"}) {
    SCOPED_TRACE(name);
    Json config = plain_sizes;
    config["model_type"] = name;
    EXPECT_THROW(static_cast<void>(read(config)), InvalidInput);
  }
}

TEST(ModelFamilies, SmallGemma4HasInputsAndReusedKeysOfLayers) {
  const Model model = read(config_of("Gemma-4-E2B, language part"));
  ASSERT_TRUE(model.layer_inputs.has_value());
  EXPECT_EQ(model.layer_inputs->width, 256);
  std::int64_t reusing = 0;
  for (const LayerKind& kind : model.kinds) {
    EXPECT_EQ(kind.head_dim_qk, kind.kind == LayerMixer::sliding ? 256 : 512);
    if (kind.reuses_kv) reusing += static_cast<std::int64_t>(kind.layers.size());
  }
  EXPECT_EQ(reusing, 20);
  EXPECT_EQ(model.mlp_width(14), 6144);
  EXPECT_EQ(model.mlp_width(15), 12288);
  Json config = config_of("Gemma-4-E2B, language part");
  for (const int count : {31, 35}) {  // of each kind of layers one has to come before those that reuse it
    config["num_kv_shared_layers"] = count;
    EXPECT_THROW(static_cast<void>(read(config)), InvalidInput) << count;
  }
}

TEST(ModelFamilies, SingleLayersMayHaveOtherHeads) {
  Json config = config_of("Gemma-4-31B");
  const Model model = read(config);
  for (const LayerKind& kind : model.kinds) {
    EXPECT_EQ(kind.kv_heads, kind.kind == LayerMixer::sliding ? 16 : 4);
    EXPECT_EQ(kind.shared_kv, kind.kind == LayerMixer::softmax);
  }
  config["per_layer_config"]["07"] = {{"rope_theta_of_layer", 1}};
  EXPECT_THROW(static_cast<void>(read(config)), InvalidInput);
  config["per_layer_config"].erase("07");
  config["per_layer_config"]["5"] = {{"head_dim", 256}};
  EXPECT_THROW(static_cast<void>(read(config)), InvalidInput) << "beside \"05\"";
  config["per_layer_config"].erase("5");
  config["per_layer_config"]["60"] = {{"head_dim", 512}};
  EXPECT_THROW(static_cast<void>(read(config)), InvalidInput);
}

TEST(ModelFamilies, OfTwoStatementsOnTheEmbeddingTheOuterHolds) {
  const Json text = config_of("Llama-3.1-8B");
  Json config = {{"model_type", "llava"}, {"text_config", text}, {"tie_word_embeddings", true}};
  const Model model = read(config);
  EXPECT_EQ(model.tied_embeddings, true);
  EXPECT_TRUE(says(model.derived, "the outer config's"));
  config.erase("tie_word_embeddings");
  EXPECT_EQ(read(config).tied_embeddings, false);
}

TEST(ModelFamilies, MlpLayerTypesAreSparseOrDense) {
  Json config = config_of("Laguna (5 layers)");
  EXPECT_EQ(read(config).moe->layers, (std::vector<int>{1, 2, 3, 4}));
  config["mlp_layer_types"][0] = "spares";
  EXPECT_THROW(static_cast<void>(read(config)), InvalidInput);
  config["mlp_layer_types"] = "dense";
  EXPECT_THROW(static_cast<void>(read(config)), InvalidInput);
  config.erase("mlp_layer_types");
  EXPECT_EQ(read(config).moe->layers, (std::vector<int>{1, 2, 3, 4})) << "the class of Laguna";
}

constexpr const char* plain =
    R"({"model_type":"unheard_of","hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,
        "num_attention_heads":32,"num_key_value_heads":8,"vocab_size":128256,"hidden_act":"silu",
        "tie_word_embeddings":false,"rms_norm_eps":1e-5,"rope_theta":5e5,"attention_bias":false,"use_cache":true})";

TEST(ModelFamilies, APlainDecoderOfUnknownNameIsLlamaWithItsAssumptionsListed) {
  const Json config = parse_json(plain, "plain");
  const Model model = read(config);
  EXPECT_EQ(count_parameters(model).total, 8030261248);
  EXPECT_TRUE(says(model.derived, "head_dim = hidden / heads = 128"));
  EXPECT_TRUE(says(model.derived, "--model-key gated_mlp=false"));
  EXPECT_TRUE(says(model.notes, "'unheard_of' is not known"));
  const Model two = read(config, {"gated_mlp=false", "head_dim=64"});
  EXPECT_EQ(two.gated_mlp, false);
  EXPECT_EQ(two.kinds[0].head_dim_qk, 64);
  Json other = config;
  other["hidden_act"] = "gelu";
  EXPECT_FALSE(read(other).gated_mlp.has_value()) << "both forms exist: nothing is assumed";
}

TEST(ModelFamilies, KeysThatSpeakOfLayersAreRefusedUnlessUnderstood) {
  const std::pair<const char*, const char*> speaking[] = {{"num_kv_shared_layers", "10"},
                                                          {"sparse_block_size", "64"},
                                                          {"window_layers", "[1,2]"},
                                                          {"attn_window_size", "512"},
                                                          {"index_share_layers", "[1]"},
                                                          {"cla_share_factor", "2"},
                                                          {"hybrid_ratio", "3"},
                                                          {"conv_kernel_size", "4"},
                                                          {"cross_attn_every", "4"},
                                                          {"global_attn_every_n_layers", "6"},
                                                          {"layer_group_size", "8"},
                                                          {"recurrent_block", "true"},
                                                          {"nsa_compress_stride", "16"},
                                                          {"num_small_heads", "4"},
                                                          {"sparse_attention_config", R"({"topk":4})"},
                                                          {"attention_pattern", R"(["a","b"])"}};
  for (const auto& [key, value] : speaking) {
    Json config = parse_json(plain, "plain");
    config[key] = Json::parse(value);
    try {
      static_cast<void>(read(config));
      ADD_FAILURE() << key << " passed";
    } catch (const InvalidInput& error) {
      EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
    }
    EXPECT_NO_THROW(static_cast<void>(read(config, {std::string(key) + "=null"}))) << key;
  }
}

TEST(ModelFamilies, KeysOfOtherThingsPass) {
  Json config = parse_json(plain, "plain");
  const Json harmless = Json::parse(
      R"({"layer_norm_eps":1e-5,"layerdrop":0.0,"attention_dropout":0.0,"image_token_index":5,"output_hidden_states":true,
      "initializer_range":0.02,"rope_local_base_freq":1e4,"n_group":8,"topk_group":4,"max_window_layers":28,
      "sliding_window":null,"layer_types":null,"use_sliding_window":false,"num_nextn_predict_layers":1,
      "attn_implementation":"flash_attention_2","router_aux_loss_coef":0.01,"no_rope_layer_interval":4})");
  config.update(harmless);
  EXPECT_EQ(read(config).kinds.size(), 1U);
}

TEST(ModelFamilies, NestsOfAnyDepthAndOfNewNames) {
  const Json inner = parse_json(plain, "plain");
  for (const char* path : {"/text_config", "/thinker_config/text_config", "/a/llm_config", "/model_config",
                           "/omni_config/thinker_config/language_config", "/lm_config"}) {
    Json config = {{"model_type", "outer"},
                   {"vision_config", {{"hidden_size", 1024}, {"num_hidden_layers", 24}}}};
    config[Json::json_pointer(path)] = inner;
    EXPECT_EQ(read(config).layers, 32) << path;
    config["other_config"] = {
        {"inside", inner}};  // as likely the language model, where the first has no known name
    const bool known = std::string(path).find("/a/") == std::string::npos &&
                       std::string(path).rfind("/omni", 0) != 0 && std::string(path) != "/model_config";
    if (known)
      EXPECT_EQ(read(config).layers, 32) << path;
    else
      EXPECT_THROW(static_cast<void>(read(config)), InvalidInput) << path;
  }
  Json two = {{"left", inner}, {"right", inner}};
  EXPECT_THROW(static_cast<void>(read(two)), InvalidInput);
}

TEST(ModelFamilies, WidthsOfSingleLayersMayBeListed) {
  Json config = parse_json(plain, "plain");
  const std::int64_t layers = config["num_hidden_layers"], width = config["intermediate_size"];
  const auto whole = count_parameters(read(config)).mlp;
  config["intermediate_size"] = std::vector<std::int64_t>(static_cast<std::size_t>(layers), width);
  EXPECT_EQ(count_parameters(read(config)).mlp, whole);
  config["intermediate_size"][1] = 2 * width;
  EXPECT_EQ(read(config).mlp_width(1), 2 * width);
  EXPECT_EQ(*count_parameters(read(config)).mlp, *whole / layers * (layers + 1));
  config["intermediate_size"].erase(0);
  EXPECT_THROW(static_cast<void>(read(config)), InvalidInput) << "fewer entries than layers";
}

TEST(ModelFamilies, ExpertsThatNoLayerOrNoRuleHoldsAreRefused) {
  Json config = config_of("Llama-3.1-8B");
  config["num_local_experts"] = 8;
  EXPECT_THROW(static_cast<void>(read(config)), InvalidInput) << "llama has no experts";
  config = config_of("DeepSeek-V3.2");
  config["first_k_dense_replace"] = config["num_hidden_layers"];
  EXPECT_THROW(static_cast<void>(read(config)), InvalidInput) << "every layer is dense";
}

TEST(ModelFamilies, ANestedConfigIsSavedWithoutWhatItsClassSets) {
  const Model twelve = read(parse_json(
      R"({"model_type":"gemma3","text_config":{"hidden_size":3840,"intermediate_size":15360,"model_type":"gemma3_text",
      "num_attention_heads":16,"num_hidden_layers":48,"num_key_value_heads":8,"sliding_window":1024}})",
      "g"));
  EXPECT_EQ(twelve.kinds[0].head_dim_qk, 256) << "the class's, not hidden / heads";
  EXPECT_EQ(twelve.vocab, 262208);
  EXPECT_TRUE(says(twelve.derived, "head_dim = 256"));
  // At the top level the same file is cut.
  EXPECT_THROW(static_cast<void>(read(parse_json(R"({"model_type":"gemma3_text","hidden_size":2560})", "g"))),
               InvalidInput);
}

TEST(ModelFamilies, SparseIndexAttention) {
  for (const Json& row : published()) {
    if (row["name"] != "DeepSeek-V3.2") continue;
    const Model model = read(row["config"]);
    ASSERT_EQ(model.kinds.size(), 1U);
    EXPECT_EQ(model.kinds[0].kind, LayerMixer::sparse);
    EXPECT_EQ(model.kinds[0].sparse->topk, 2048);
    EXPECT_TRUE(says(model.notes, "2048 keys"));
    Json cut = row["config"];
    cut.erase("index_head_dim");
    EXPECT_THROW(static_cast<void>(read(cut)), MissingValue);
  }
}

TEST(ModelFamilies, CrossAttentionSeesTheTokensOfAnImage) {
  Json config = parse_json(plain, "plain");
  config["cross_attention_layers"] = {3, 8};
  EXPECT_THROW(static_cast<void>(read(config)), MissingValue) << "how many tokens is not known";
  const Model model = read(config, {"cross_tokens=1601"});
  ASSERT_EQ(model.kinds.size(), 2U);
  EXPECT_EQ(model.kinds[1].kind, LayerMixer::cross);
  EXPECT_EQ(model.kinds[1].layers, (std::vector<int>{3, 8}));
  EXPECT_EQ(model.kinds[1].cross_tokens, 1601);
}

TEST(ModelFamilies, ListsOfLayersCountFromZeroOrFromOne) {
  Json config = parse_json(plain, "plain");
  config["cross_tokens"] = 64;
  config["cross_attention_layers"] = {1, 32};  // of 32: from 1
  EXPECT_EQ(read(config).kinds[0].layers, (std::vector<int>{0, 31}));
  config["cross_attention_layers"] = {0, 31};
  EXPECT_EQ(read(config).kinds[0].layers, (std::vector<int>{0, 31}));
  for (const char* wrong : {"[0,32]", "[3,3]", "[33]", "[-1]"}) {
    config["cross_attention_layers"] = Json::parse(wrong);
    EXPECT_THROW(static_cast<void>(read(config)), InvalidInput) << wrong;
  }
}

TEST(ModelFamilies, BlocksWithoutAttentionOrMlp) {
  const char* nas =
      R"({"model_type":"nemotron-nas","hidden_size":8192,"num_hidden_layers":3,"num_attention_heads":64,
      "vocab_size":128256,"tie_word_embeddings":false,"block_configs":[
      {"attention":{"n_heads_in_group":8,"no_op":false,"replace_with_linear":false},"ffn":{"ffn_mult":5.25,"no_op":false}},
      {"attention":{"no_op":true},"ffn":{"ffn_mult":1.0}},
      {"attention":{"n_heads_in_group":16},"ffn":{"no_op":true}}]})";
  const Model model = read(parse_json(nas, "nas"));
  ASSERT_EQ(model.kinds.size(), 3U);
  EXPECT_EQ(model.kinds[0].kv_heads, 8);
  EXPECT_EQ(model.kinds[1].kind, LayerMixer::none);
  EXPECT_EQ(model.kinds[2].kv_heads, 4);
  EXPECT_EQ(model.mlp_widths, (std::vector<std::int64_t>{28672, 5632, 0}));
  EXPECT_EQ(model.attention_layers(), 2);
}

TEST(ModelFamilies, ListsThatDisagreeWithTheLayersAreErrors) {
  for (const char* extra : {R"("layer_types":["full_attention"])", R"("hybrid_override_pattern":"M-*")",
                            R"("hybrid_layer_pattern":[1,0])", R"("num_key_value_heads":[8,8])",
                            R"("attention_types":[[["global"],3]])", R"("block_configs":[])",
                            R"("mlp_layer_types":["dense"],"num_experts":4,"num_experts_per_tok":1)"}) {
    Json config = parse_json(plain, "plain");
    config.update(Json::parse("{" + std::string(extra) + "}"));
    EXPECT_THROW(static_cast<void>(read(config)), InvalidInput) << extra;
  }
}

}  // namespace
}  // namespace usp
