// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/parameters.hpp"

#include "weights.hpp"

#include "usp/base/error.hpp"

#include <limits>

namespace usp {
namespace {

using weights::Wide;

std::int64_t narrow(Wide count, const Model& model) {
  if (count > std::numeric_limits<std::int64_t>::max())
    throw InvalidInput({model.name, 0, ""},
                       "the parameter count does not fit 63 bits; the sizes cannot be right");
  return static_cast<std::int64_t>(count);
}

void add(std::optional<std::int64_t>& sum, std::optional<std::int64_t> term, const Model& model) {
  if (sum && term)
    sum = narrow(Wide{*sum} + *term, model);
  else
    sum.reset();
}

/// Sum of terms; empty as soon as one is.
std::optional<std::int64_t> sum_of(std::initializer_list<std::optional<std::int64_t>> terms,
                                   const Model& model) {
  std::optional<std::int64_t> sum = 0;
  for (const auto& term : terms) add(sum, term, model);
  return sum;
}

void count_experts(const Model& model, LayerParameters& layer) {
  const MixtureOfExperts& moe = *model.moe;
  const auto expert = weights::mlp(model, moe.moe_intermediate);
  const auto shared = weights::mlp(model, moe.shared_intermediate);
  if (!expert || !shared) return;
  layer.experts = narrow(expert->total() * moe.experts, model);
  layer.active_experts = narrow(expert->total() * moe.experts_per_token, model);
  layer.mlp = narrow(weights::router(model).total() + (moe.shared_experts > 0 ? shared->total() : 0), model);
}

LayerParameters count_layer(const Model& model, int index) {
  LayerParameters layer;
  Wide attention = 0;
  for (const std::size_t kind : model.kinds_of(index))
    attention += weights::attention(model, model.kinds[kind]).total() * model.kinds[kind].per_layer;
  layer.attention = narrow(attention, model);
  if (model.details)
    layer.norms =
        narrow(Wide{model.details->norms_per_layer} * model.details->norm_vectors * model.hidden, model);
  if (model.is_moe_layer(index)) {
    count_experts(model, layer);
    return layer;
  }
  layer.experts = layer.active_experts = 0;
  const auto width = model.mlp_width(index);
  if (!width) return layer;
  if (*width == 0)
    layer.mlp = 0;
  else if (const auto dense = weights::mlp(model, *width))
    layer.mlp = narrow(dense->total(), model);
  return layer;
}

void count_embedding(const Model& model, ParameterCount& count) {
  if (!model.vocab) {
    count.notes.emplace_back("vocab_size is not stated: embedding and total are unknown");
    return;
  }
  const Wide table = Wide{*model.vocab} * model.hidden;
  const Wide positions = model.details ? Wide{model.details->learnt_positions} * model.hidden : Wide{0};
  const Wide layer_tables = model.layer_inputs
                                ? Wide{model.layer_inputs->vocab} * model.layer_inputs->width * model.layers
                                : Wide{0};
  count.embedding = narrow(table + positions + layer_tables, model);
  if (model.tied_embeddings)
    count.lm_head = *model.tied_embeddings ? 0 : narrow(table, model);
  else
    count.notes.emplace_back("tie_word_embeddings is not stated: the head and the total are unknown");
}

}  // namespace

std::optional<std::int64_t> LayerParameters::total() const {
  if (!mlp || !experts) return std::nullopt;
  return attention + *mlp + *experts + norms;
}

std::optional<std::int64_t> LayerParameters::active() const {
  if (!mlp || !active_experts) return std::nullopt;
  return attention + *mlp + *active_experts + norms;
}

ParameterCount count_parameters(const Model& model) {
  ParameterCount count;
  count_embedding(model, count);
  count.mlp = count.experts = 0;
  for (const LayerKind& kind : model.kinds) {
    std::int64_t& sum = kind.is_linear() ? count.linear_attention : count.attention;
    sum = narrow(Wide{sum} + weights::attention(model, kind).total() * kind.calls(), model);
  }
  std::optional<std::int64_t> active_experts = 0;
  for (int i = 0; i < model.layers; ++i) {
    const LayerParameters layer = count_layer(model, i);
    count.norms = narrow(Wide{count.norms} + layer.norms, model);
    add(count.mlp, layer.mlp, model);
    add(count.experts, layer.experts, model);
    add(active_experts, layer.active_experts, model);
    count.layers.push_back(layer);
  }
  if (model.details)
    count.outer_norms =
        narrow(Wide{model.details->extra_norms} * model.details->norm_vectors * model.hidden, model);
  count.norms = narrow(Wide{count.norms} + count.outer_norms, model);
  if (!count.mlp)
    count.notes.emplace_back("the MLP's width or number of matrices is not stated: the total is unknown");
  const std::optional<std::int64_t> dense = sum_of(
      {count.embedding, count.lm_head, count.attention, count.linear_attention, count.mlp, count.norms},
      model);
  count.total = sum_of({dense, count.experts}, model);
  count.active = sum_of({dense, active_experts}, model);
  return count;
}

}  // namespace usp
