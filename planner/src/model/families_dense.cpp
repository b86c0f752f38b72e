// SPDX-License-Identifier: Apache-2.0
// Dense decoders after Llama's and GPT's patterns.
#include "family.hpp"
#include "family_details.hpp"

namespace usp::family {
namespace {

using K = KvRule;
using H = HeadDimRule;
using P = PatternRule;
using W = MlpWidthRule;

/// Gated MLP, RMSNorm, grouped KV heads; `change` says what else.
template <class Change>
void add(std::vector<Family>& list, std::vector<std::string_view> names, Change change) {
  Family f{
      .names = std::move(names), .kv = K::equals_heads, .head_dim = H::hidden_over_heads, .details = rms()};
  change(f);
  list.push_back(std::move(f));
}

void add(std::vector<Family>& list, std::vector<std::string_view> names) {
  add(list, std::move(names), [](Family&) {});
}

void add_gated(std::vector<Family>& list) {
  add(list, {"seed_oss", "granite", "exaone", "internlm3", "ministral", "ministral3", "falcon3", "helium",
             "baichuan", "yi", "aquila", "aquila3", "solar", "xverse", "telechat", "minicpm"});
  add(list, {"internlm2"});
  add(list, {"mimo"}, [](Family& f) { f.details = qkv_biased(rms()); });
  add(list, {"olmo"}, [](Family& f) { f.details.norm_vectors = 0; });
  add(list, {"olmo3"}, [](Family& f) {
    f.pattern = P::every_nth_full;
    f.period = 4;
    f.details = rms(2, QkNorm::projection);
  });
  add(list, {"smollm3"}, [](Family& f) {
    f.pattern = P::window_qwen;
    f.tied = true;
  });
  add(list, {"ernie4_5"}, [](Family& f) { f.tied = true; });
  add(list, {"exaone4"}, [](Family& f) { f.details = rms(2, QkNorm::per_head); });
  add(list, {"hunyuan_v1_dense"}, [](Family& f) { f.details = rms(2, QkNorm::per_head); });
  add(list, {"glm"}, [](Family& f) { f.details = qkv_biased(rms()); });
  add(list, {"glm4"}, [](Family& f) { f.details = qkv_biased(rms(4)); });
  add(list, {"stablelm"}, [](Family& f) { f.details = layer_norm(false); });
  add(list, {"minicpm3"}, [](Family& f) { f.mla = true; });
  add(list, {"mllama_text_model"});
  add(list, {"bitnet"}, [](Family& f) { f.details = rms(3); });  // the third: of the attention's output
  add(list, {"vaultgemma"}, [](Family& f) { f.tied = true; });
  add(list, {"granite_swa"}, [](Family& f) { f.sinks = true; });
  add(list, {"hyperclovax"}, [](Family& f) { f.details = rms(4); });
}

/// Two matrices: squared ReLU and its kin.
void add_ungated(std::vector<Family>& list) {
  add(list, {"nanochat"}, [](Family& f) {
    f.gated = false;
    f.details.norm_vectors = 0;
  });
  add(list, {"jais2"}, [](Family& f) {
    f.gated = false;
    f.details = layer_norm(true);
  });
  add(list, {"arcee"}, [](Family& f) { f.gated = false; });
  add(list, {"apertus"}, [](Family& f) {
    f.gated = false;
    f.details = rms(2, QkNorm::per_head);
  });
  add(list, {"nemotron"}, [](Family& f) {
    f.gated = false;
    f.details = layer_norm(false);
    f.details.norm_vectors = 2;
  });
  add(list, {"persimmon"}, [](Family& f) {
    f.gated = false;
    f.details = layer_norm(true);
    f.details.qk_norm = QkNorm::per_head;
  });
  add(list, {"phi"}, [](Family& f) {
    f.gated = false;
    f.details = layer_norm(true, 1);
  });
}

/// GPT's own generation: four times the hidden size where the config states no width.
void add_gpt(std::vector<Family>& list) {
  const auto gpt = [](Family& f) {
    f.gated = false;
    f.tied = true;
    f.width = W::four_hidden_if_absent;
    f.details = layer_norm(true);
  };
  add(list, {"gptj", "codegen"}, [&](Family& f) {
    gpt(f);
    f.tied = false;
    f.details = layer_norm(false, 1);
    f.details.mlp_bias = true;
  });
  add(list, {"gpt_neo"}, [&](Family& f) {
    gpt(f);
    f.details.qkv_bias = false;
  });
  add(list, {"opt"}, [&](Family& f) {
    gpt(f);
    f.width = W::stated;
  });
  add(list, {"mpt"}, [&](Family& f) {
    gpt(f);
    f.details = layer_norm(false);
    f.details.norm_vectors = 1;
    f.alibi = true;
  });
  add(list, {"openelm"}, [](Family& f) {
    f.tied = true;
    f.details = rms(2, QkNorm::per_head);
  });
}

}  // namespace

std::vector<Family> dense_families() {
  std::vector<Family> list;
  add_gated(list);
  add_ungated(list);
  add_gpt(list);
  return list;
}

}  // namespace usp::family
