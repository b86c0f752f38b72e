// SPDX-License-Identifier: Apache-2.0
#include "usp/base/json_format.hpp"
#include "usp/planner/model_config.hpp"
#include "usp/planner/parameters.hpp"

#include <algorithm>
#include <functional>

namespace usp {
namespace {

/// Null for the fields that a layer without softmax does not have.
Json softmax_value(const LayerKind& kind, std::int64_t value) {
  return !kind.has_softmax() ? Json(nullptr) : Json(value);
}

Json kind_json(const LayerKind& kind) {
  Json j = {{"kind", mixer_name(kind.kind)},
            {"layers", kind.layers},
            {"query_heads", softmax_value(kind, kind.query_heads)},
            {"kv_heads", softmax_value(kind, kind.kv_heads)},
            {"head_dim_qk", softmax_value(kind, kind.head_dim_qk)},
            {"head_dim_v", softmax_value(kind, kind.head_dim_v)},
            {"window", json_or_null(kind.window)},
            {"softcap", json_or_null(kind.softcap)},
            {"sinks", kind.sinks},
            {"output_gate", kind.output_gate},
            {"reuses_kv", kind.reuses_kv},
            {"sparse", nullptr},
            {"cross_tokens", kind.kind == LayerMixer::cross ? Json(kind.cross_tokens) : Json(nullptr)},
            {"linear", nullptr}};
  // Absent is 1, the default scale and no ALiBi, so that the digests of other models stay.
  if (kind.per_layer > 1) j["per_layer"] = kind.per_layer;
  if (kind.scale) j["scale"] = *kind.scale;
  if (kind.alibi) j["alibi"] = true;
  if (const auto& s = kind.sparse)
    j["sparse"] = {{"topk", s->topk}, {"heads", s->heads}, {"head_dim", s->head_dim}};
  if (const auto& l = kind.linear)
    j["linear"] = {{"style", linear_style_name(l->style)},
                   {"key_heads", l->key_heads},
                   {"value_heads", l->value_heads},
                   {"key_dim", l->key_dim},
                   {"value_dim", l->value_dim},
                   {"conv_kernel", l->conv_kernel}};
  return j;
}

/// The value that all softmax layers share, the list of distinct ones in layer order, or null without any.
Json shared_value(const Model& model, const std::function<std::int64_t(const LayerKind&)>& of) {
  std::vector<std::int64_t> distinct;
  for (const auto& kind : model.kinds)
    if (kind.has_softmax() && std::find(distinct.begin(), distinct.end(), of(kind)) == distinct.end())
      distinct.push_back(of(kind));
  if (distinct.empty()) return nullptr;
  return distinct.size() == 1 ? Json(distinct.front()) : Json(distinct);
}

Json moe_json(const Model& model) {
  if (!model.moe) return nullptr;
  const MixtureOfExperts& moe = *model.moe;
  return {{"experts", moe.experts},
          {"experts_per_token", moe.experts_per_token},
          {"moe_intermediate", moe.moe_intermediate},
          {"shared_experts", moe.shared_experts},
          {"shared_intermediate", moe.shared_intermediate},
          {"layers", moe.layers}};
}

Json mla_json(const Model& model) {
  if (!model.mla) return nullptr;
  return {{"q_lora_rank", json_or_null(model.mla->q_lora_rank)},
          {"kv_lora_rank", model.mla->kv_lora_rank},
          {"nope_head_dim", model.mla->nope_head_dim},
          {"rope_head_dim", model.mla->rope_head_dim}};
}

Json parameters_json(const ParameterCount& count) {
  return {{"total", json_or_null(count.total)},
          {"active", json_or_null(count.active)},
          {"embedding", json_or_null(count.embedding)},
          {"lm_head", json_or_null(count.lm_head)},
          {"attention", count.attention},
          {"linear_attention", count.linear_attention},
          {"mlp", json_or_null(count.mlp)},
          {"experts", json_or_null(count.experts)},
          {"norms", count.norms}};
}

}  // namespace

std::string model_json(const Model& model) {
  const ParameterCount count = count_parameters(model);
  Json kinds = Json::array();
  for (const auto& kind : model.kinds) kinds.push_back(kind_json(kind));
  std::vector<std::string> notes = model.notes;
  notes.insert(notes.end(), count.notes.begin(), count.notes.end());
  Json j = json_header("usp.model");
  j["name"] = model.name;
  j["family"] = model.family;
  j["layers"] = model.layers;
  j["hidden"] = model.hidden;
  j["vocab"] = json_or_null(model.vocab);
  j["tied_embeddings"] = json_or_null(model.tied_embeddings);
  j["query_heads"] = shared_value(model, [](const LayerKind& k) { return k.query_heads; });
  j["kv_heads"] = shared_value(model, [](const LayerKind& k) { return k.kv_heads; });
  j["head_dim_qk"] = shared_value(model, [](const LayerKind& k) { return k.head_dim_qk; });
  j["head_dim_v"] = shared_value(model, [](const LayerKind& k) { return k.head_dim_v; });
  j["attention_layers"] = model.attention_layers();
  j["layer_kinds"] = kinds;
  j["ulysses_even"] = even_ulysses_degrees(model);
  j["ulysses_even_linear"] = even_ulysses_degrees_linear(model);
  j["mlp"] = {{"dense_intermediate", json_or_null(model.dense_intermediate)},
              {"gated", json_or_null(model.gated_mlp)},
              {"widths", model.mlp_widths.empty() ? Json(nullptr) : Json(model.mlp_widths)}};
  j["moe"] = moe_json(model);
  j["mla"] = mla_json(model);
  j["layer_inputs"] = model.layer_inputs
                          ? Json{{"width", model.layer_inputs->width}, {"vocab", model.layer_inputs->vocab}}
                          : Json(nullptr);
  j["parameters"] = parameters_json(count);
  j["derived"] = model.derived;
  j["notes"] = notes;
  return j.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace usp
