// SPDX-License-Identifier: Apache-2.0
#include "recipe_json.hpp"

#include "usp/schedule/words.hpp"

namespace usp {
namespace {

Json limit_json(i64 value) {
  return value <= -unbounded || value >= unbounded ? Json(nullptr) : Json(value);
}

}  // namespace

Json mesh_json(const Mesh& mesh) {
  return {{"ring", mesh.ring()},
          {"ring_outer", mesh.ring_outer},
          {"ring_inner", mesh.ring_inner},
          {"ulysses", mesh.ulysses}};
}

Json shape_json(const AttentionShape& shape) {
  return {{"batch", shape.batch},           {"q_tokens", shape.q_tokens},
          {"kv_tokens", shape.kv_tokens},   {"query_heads", shape.query_heads},
          {"kv_heads", shape.kv_heads},     {"head_dim_qk", shape.head_dim_qk},
          {"head_dim_v", shape.head_dim_v}, {"dtype", word_of(shape.dtype)}};
}

Json band_json(const Band& band) {
  return {{"diff_min", limit_json(band.diff_min)}, {"diff_max", limit_json(band.diff_max)}};
}

Json score_rules_json(const ScoreRules& score) {
  return {{"scale", score.scale == 0 ? Json(nullptr) : Json(score.scale)},
          {"softcap", score.softcap},
          {"dropout", score.dropout},
          {"alibi", score.alibi},
          {"block_tokens", score.block_tokens}};
}

Json ranges_json(const std::vector<Range>& ranges) {
  Json json = Json::array();
  for (const Range& range : ranges) json.push_back({range.begin, range.end});
  return json;
}

/// Keys whose absence is their default are left out, so that files written before them keep their digest.
Json recipe_json(const AttentionPlan& plan) {
  Json json = {{"shape", shape_json(plan.shape)},
               {"method", word_of(plan.method)},
               {"layout", word_of(plan.layout)},
               {"band", band_json(plan.band)},
               {"dkv_return", word_of(plan.dkv_return)},
               {"head_chunks", plan.head_chunks},
               {"prune", plan.prune},
               {"save_exchanged_qkv", plan.save_exchanged_qkv},
               {"sink", plan.sink},
               {"return_lse", plan.return_lse},
               {"backend", word_of(plan.backend)},
               {"score", score_rules_json(plan.score)},
               {"replicated_q", ranges_json(plan.replicated_q)},
               {"replicated_k", ranges_json(plan.replicated_k)}};
  if (plan.split_own_block) json["split_own_block"] = true;
  if (plan.gated) json["gated"] = true;
  if (plan.gate_phases != 1) json["gate_phases"] = plan.gate_phases;
  return json;
}

}  // namespace usp
