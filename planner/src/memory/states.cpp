// SPDX-License-Identifier: Apache-2.0
#include "states.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace usp {
namespace {

/// Parameters that one rank of the stage works with, before ZeRO shards them.
struct StageParameters {
  double dense = 0;         ///< replicated over data x sequence ranks
  double experts = 0;       ///< split over the expert-parallel ranks first
  double largest_unit = 0;  ///< the largest layer (or embedding, or head): what ZeRO-3 gathers at once
};

/// Layers of more parameters are gathered matrix by matrix (DeepSpeed's stage3_max_live_parameters).
constexpr double most_gathered = 1e9;

double needed_mlp(const std::optional<std::int64_t>& value, const Model& model) {
  if (!value && model.dense_intermediate && !model.gated_mlp)
    throw MissingValue({model.name, 0, "/gated_mlp"}, "the number of MLP matrices",
                       "say --model-key gated_mlp=true (gate, up and down) or gated_mlp=false (up and down)");
  if (!value)
    throw MissingValue({model.name, 0, "/intermediate_size"}, "intermediate_size",
                       "add the key, or use a known model_type");
  return static_cast<double>(*value);
}

double needed(const std::optional<std::int64_t>& value, const Model& model, const char* key) {
  if (!value)
    throw MissingValue({model.name, 0, std::string("/") + key}, key,
                       "add the key, or use a known model_type");
  return static_cast<double>(*value);
}

StageParameters stage_parameters(const MemoryInput& in, int stage) {
  const ParameterCount& count = *in.parameters;
  const auto tensor = static_cast<double>(in.mesh.tensor), expert = static_cast<double>(in.mesh.expert);
  const StageLayers range = stage_layers(in, stage);
  StageParameters p;
  for (int i = range.first; i < range.last; ++i) {
    const LayerParameters& layer = count.layers[static_cast<std::size_t>(i)];
    const double matrices = static_cast<double>(layer.attention) + needed_mlp(layer.mlp, *in.model);
    const double dense = matrices / tensor + static_cast<double>(layer.norms);
    const double experts = needed(layer.experts, *in.model, "moe_intermediate_size") / expert /
                           (in.workload->expert_tensor ? tensor : 1);
    p.dense += dense;
    p.experts += experts;
    double unit = dense + experts;
    if (unit > most_gathered) {
      const double matrices_of_mlp = in.model->gated_mlp.value_or(true) ? 3 : 2;
      const double attention = static_cast<double>(layer.attention) / tensor;
      unit = std::max(
          {most_gathered, attention, (dense - attention) / matrices_of_mlp, experts / matrices_of_mlp});
    }
    p.largest_unit = std::max(p.largest_unit, unit);
  }
  const bool first = stage == 0, last = stage + 1 == in.mesh.pipeline;
  const double embedding = needed(count.embedding, *in.model, "vocab_size") / tensor;
  const double head = needed(count.lm_head, *in.model, "tie_word_embeddings") / tensor;
  const bool tied = in.model->tied_embeddings.value_or(false);
  if (first || (last && tied)) p.dense += embedding;  // both ends of a pipeline hold a tied table
  if (last) p.dense += head + static_cast<double>(count.outer_norms);
  if (first || last)
    p.largest_unit = std::max({p.largest_unit, first || tied ? embedding : 0, last ? head : 0});
  return p;
}

std::string shards(bool sharded, const MemoryInput& in) {
  return sharded ? fmt::format("/ {}", counted(in.mesh.sharding_ranks(), "data x sequence rank"))
                 : "whole on each rank";
}

}  // namespace

StageLayers stage_layers(const MemoryInput& in, int stage) {
  const auto layers = static_cast<int>(in.model->layers), stages = static_cast<int>(in.mesh.pipeline);
  const int each = layers / stages, extra = layers % stages;
  // Stages with one layer more, in the order of their memory: those between the ends, which hold embedding
  // and head (Llama 3, arXiv 2407.21783, "balanced" stages), then the first.
  const int between = std::min(extra, std::max(0, stages - 2));
  const bool first_too = extra > between;
  const auto more_before = [&](int s) { return s == 0 ? 0 : std::min(s - 1, between) + (first_too ? 1 : 0); };
  const int first = stage * each + more_before(stage);
  return {first, (stage + 1) * each + more_before(stage + 1)};
}

std::int64_t whole_bytes(double bytes) {
  if (!(bytes < 9e18))
    throw InvalidInput({"--batch and --seq", 0, ""},
                       "with this model they give more than 2^63 bytes per device; make one of them smaller");
  return static_cast<std::int64_t>(std::ceil(bytes));
}

void add_state_rows(const MemoryInput& in, int stage, MemoryTable& table) {
  const Workload& w = *in.workload;
  const StageParameters p = stage_parameters(in, stage);
  const auto ranks = static_cast<double>(in.mesh.sharding_ranks());
  // An expert's own copies are fewer by the expert degree, so ZeRO shards it over fewer ranks.
  const auto pool = static_cast<double>(w.expert_pool(in.mesh.sharding_ranks(), in.mesh.tensor));
  const double sharded = p.dense / ranks + p.experts / (pool / static_cast<double>(in.mesh.expert));
  const double full = p.dense + p.experts;
  const double element = bytes_of(w.dtype), gradient = w.fp32_gradients ? 4 : element;
  const auto row = [&](MemoryKind kind, const char* name, double each, int from_stage) {
    const bool split = w.zero_stage >= from_stage;
    table.rows.push_back(
        {kind, name, whole_bytes(each * (split ? sharded : full)), reason_of(in, [&] {
           if (split && in.mesh.expert > 1 && p.experts > 0)
             return fmt::format("{} B x ({} / {} + {} of experts / {})", static_cast<int>(each),
                                counted(static_cast<std::int64_t>(p.dense), "parameter"), ranks,
                                static_cast<std::int64_t>(p.experts),
                                pool / static_cast<double>(in.mesh.expert));
           return fmt::format("{} B x {} of the stage, {}", static_cast<int>(each),
                              counted(static_cast<std::int64_t>(full), "parameter"), shards(split, in));
         })});
  };
  row(MemoryKind::parameters, "parameters", element, 3);
  if (w.training) {
    row(MemoryKind::gradients, "gradients", gradient, 2);
    row(MemoryKind::optimizer,
        w.optimizer == Optimizer::adamw ? "master weights and moments" : "master weights",
        w.optimizer == Optimizer::adamw ? 12 : 4, 1);
  }
  if (w.zero_stage < 3 && (w.zero_stage < 2 || !w.training)) return;
  const double layers = w.zero_stage == 3 ? static_cast<double>(in.gathered_layers) : 0;
  const double bucket = w.training ? gradient : 0;
  table.rows.push_back({MemoryKind::gathered_layer, "gathered layers and gradient bucket",
                        whole_bytes(p.largest_unit * (element * layers + bucket)), reason_of(in, [&] {
                          return fmt::format(
                              "{} gathered and {} unreduced gradient of the largest unit, {} parameters",
                              static_cast<int>(layers), w.training ? "1" : "0",
                              static_cast<std::int64_t>(p.largest_unit));
                        })});
}

}  // namespace usp
