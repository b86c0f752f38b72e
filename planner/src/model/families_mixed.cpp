// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts, hybrids of attention and Mamba or convolutions, sparse and doubled attention.
#include "family.hpp"
#include "family_details.hpp"

namespace usp::family {
namespace {

using K = KvRule;
using H = HeadDimRule;
using M = MoeRule;

template <class Change>
void add(std::vector<Family>& list, std::vector<std::string_view> names, Change change) {
  Family f{.names = std::move(names),
           .kv = K::equals_heads,
           .head_dim = H::hidden_over_heads,
           .moe = M::by_keys,
           .details = rms()};
  change(f);
  list.push_back(std::move(f));
}

void add_experts(std::vector<Family>& list) {
  const auto none = [](Family&) {};
  add(list, {"deepseek", "dots1"}, none);
  add(list, {"granitemoe", "granitemoeshared"}, none);
  add(list, {"phimoe"}, [](Family& f) {
    f.details = layer_norm(true);
    f.details.mlp_bias = false;
  });
  add(list, {"ernie4_5_moe"}, [](Family& f) { f.tied = true; });
  add(list, {"hunyuan_v1_moe", "hunyuan"}, [](Family& f) {
    f.tied = true;
    f.details = rms(2, QkNorm::per_head);
  });
  add(list, {"bailing_moe", "bailing_moe_v2"}, none);
  add(list, {"dbrx"}, [](Family& f) {
    f.details = layer_norm(false);
    f.details.norm_vectors = 1;
  });
  add(list, {"mimo_v2_flash", "mimo_v2"}, [](Family& f) { f.sliding_kv_factor = 2; });
  add(list, {"mellum", "hy_v3", "exaone_moe"}, [](Family& f) { f.details = rms(2, QkNorm::per_head); });
  add(list, {"flex_olmo"}, [](Family& f) { f.details = rms(2, QkNorm::projection); });
  add(list, {"afmoe"}, [](Family& f) {
    f.output_gate = true;
    f.details = rms(4, QkNorm::per_head);
  });
  add(list, {"granitemoe_swa"}, [](Family& f) { f.sinks = true; });
  add(list, {"laguna"}, [](Family& f) {
    f.moe = M::first_dense;
    f.details = rms(2, QkNorm::per_head);
  });
  add(list, {"step3p5"}, [](Family& f) { f.details = rms(2, QkNorm::per_head); });
  add(list, {"olmoe"}, [](Family& f) { f.details = rms(2, QkNorm::projection); });
}

void add_latent(std::vector<Family>& list) {
  add(list, {"deepseek_v32", "glm_moe_dsa"}, [](Family& f) { f.mla = true; });
  add(list, {"glm4_moe_lite"}, [](Family& f) { f.mla = true; });
  add(list, {"longcat_flash"}, [](Family& f) {
    f.mla = true;
    // Attention and MLP twice; the experts run beside them, from the first attention to the end of the layer.
    f.mixers = {LayerMixer::softmax, LayerMixer::softmax};
    f.blocks = 4;
    f.dense_beside = 2;
    f.details = rms(4);
  });
}

void add_hybrids(std::vector<Family>& list) {
  add(list, {"jamba"}, [](Family& f) { f.linear = LinearStyle::mamba; });
  add(list, {"bamba", "granitemoehybrid"}, [](Family& f) {
    f.pattern = PatternRule::linear;
    f.linear = LinearStyle::mamba2;
  });
  add(list, {"falcon_h1"}, [](Family& f) {
    f.mixers = {LayerMixer::softmax, LayerMixer::linear};
    f.linear = LinearStyle::mamba2;
  });
  add(list, {"recurrent_gemma"}, [](Family& f) {
    f.width = MlpWidthRule::half_stated;
    f.tied = true;
    f.linear = LinearStyle::rg_lru;
    f.cycle = {"recurrent", "recurrent", "attention"};
    f.attention_window = "attention_window_size";
    f.default_window = 2048;
    f.details.output_bias = f.details.mlp_bias = true;
  });
  add(list, {"olmo_hybrid"}, [](Family& f) {
    f.linear = LinearStyle::gated_delta;
    f.details = rms(2, QkNorm::projection);
  });
  add(list, {"lfm2", "lfm2_moe"}, [](Family& f) {
    f.tied = true;
    f.linear = LinearStyle::short_conv;
    f.details = rms(2, QkNorm::per_head);
  });
  add(list, {"nemotron_h"}, [](Family& f) {
    f.linear = LinearStyle::mamba2;
    f.gated = false;
    f.details = rms(1);
  });
  add(list, {"nemotron-nas", "deci", "decilm"}, [](Family& f) { f.moe = M::none; });
}

}  // namespace

std::vector<Family> mixed_families() {
  std::vector<Family> list;
  add_experts(list);
  add_latent(list);
  add_hybrids(list);
  return list;
}

}  // namespace usp::family
