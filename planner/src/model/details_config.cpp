// SPDX-License-Identifier: Apache-2.0
#include "reading.hpp"

namespace usp {
namespace {

void read_falcon(Reading& r, ParameterDetails& d) {
  d.qkv_bias = d.output_bias = d.mlp_bias = r.keys.boolean("bias").value_or(false);
  const bool two = r.keys.boolean("new_decoder_architecture").value_or(false) ||
                   !r.keys.boolean("parallel_attn").value_or(true);
  d.norms_per_layer = two ? 2 : 1;
}

void read_positions(Reading& r, ParameterDetails& d) {
  const auto rows = r.keys.integer({"n_positions", "max_position_embeddings"}, 1, limit::vocab);
  if (rows)
    d.learnt_positions = *rows;
  else
    r.note("n_positions is not stated: the learnt position table is not counted");
}

void note_left_out(Reading& r) {
  for (const char* key : {"num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"})
    if (r.keys.integer({key}, 0, limit::layers).value_or(0) > 0)
      r.note(std::string(key) + ": multi-token-prediction layers are not counted and not planned");
  if (r.top.has({"vision_config"})) r.note("only the language part is read; the vision tower is left out");
}

/// Unknown families: RMSNorm before attention and MLP, biases where the config says so.
void read_assumed_details(Reading& r) {
  ParameterDetails d;
  const bool bias = r.keys.boolean("attention_bias").value_or(r.keys.boolean("qkv_bias").value_or(false));
  d.qkv_bias = bias;
  d.output_bias = r.keys.boolean("attention_out_bias").value_or(bias && !r.keys.has({"qkv_bias"}));
  d.mlp_bias = r.keys.boolean("mlp_bias").value_or(false);
  if (r.keys.boolean("use_qk_norm").value_or(false)) d.qk_norm = QkNorm::per_head;
  r.model.details = d;
  r.derive("two RMSNorms per layer and one at the end: assumed, their weights are few");
}

}  // namespace

void read_details(Reading& r) {
  note_left_out(r);
  if (r.family == nullptr) return read_assumed_details(r);
  ParameterDetails d = r.family->details;
  const std::string& name = r.model.family;
  if (const auto bias = r.keys.boolean("attention_bias")) {
    d.qkv_bias = *bias || r.family->details.qkv_bias;
    d.output_bias = *bias && name != "glm4_moe";
  }
  if (const auto bias = r.keys.boolean("mlp_bias")) d.mlp_bias = *bias;
  if (name == "chatglm") {
    const bool all = r.keys.boolean("add_bias_linear").value_or(false);
    d.qkv_bias = all || r.keys.boolean("add_qkv_bias").value_or(false);
    d.output_bias = d.mlp_bias = all;
  }
  if (const auto bias = r.keys.boolean("use_bias"); bias && name == "starcoder2")
    d.qkv_bias = d.output_bias = d.mlp_bias = *bias;
  if (r.family->kv == family::KvRule::falcon) read_falcon(r, d);
  if (name == "gpt2" || name == "gpt_bigcode" || name == "gpt_neo" || name == "opt") read_positions(r, d);
  if (const auto bias = r.keys.boolean("attention_out_bias")) d.output_bias = *bias;
  if (name == "internlm2" || name == "internlm3")
    d.qkv_bias = d.output_bias = r.keys.boolean("bias").value_or(false);
  if (const auto bias = r.keys.boolean("use_qkv_bias")) d.qkv_bias = *bias;
  if (r.keys.boolean("use_qk_norm").value_or(false)) {
    if (name == "minimax_m2") d.qk_norm = QkNorm::projection;
    if (name == "glm4_moe") d.qk_norm = QkNorm::per_head;
  }
  r.model.details = d;
}

}  // namespace usp
