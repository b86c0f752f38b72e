// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/detail/flops.hpp"

#include "weights.hpp"

#include "usp/base/error.hpp"

namespace usp {
namespace {

double multiply_adds(const weights::Weights& w) {
  return 2 * static_cast<double>(w.matrices);
}

double mlp_flops(const Model& model, std::int64_t width) {
  const auto w = weights::mlp(model, width);
  if (!w)
    throw MissingValue({model.name, 0, "/hidden_act"}, "the number of MLP matrices",
                       "say --model-key gated_mlp=true (gate, up and down) or gated_mlp=false (up and down)");
  return multiply_adds(*w);
}

double moe_flops(const Model& model) {
  const MixtureOfExperts& moe = *model.moe;
  return multiply_adds(weights::router(model)) +
         static_cast<double>(moe.experts_per_token) * mlp_flops(model, moe.moe_intermediate) +
         (moe.shared_experts > 0 ? mlp_flops(model, moe.shared_intermediate) : 0);
}

/// Per value head and token, in the recurrent form: read the state with q and add an outer product (4 dk dv);
/// the delta rules also read it with k before correcting it (2 dk dv). A short convolution has its kernel
/// alone.
double linear_core_flops(const LinearHeads& l) {
  if (l.style == LinearStyle::short_conv) return 2 * static_cast<double>(l.value_heads * l.conv_kernel);
  const double state = static_cast<double>(l.key_dim) * static_cast<double>(l.value_dim);
  return static_cast<double>(l.value_heads) * state *
         (l.style == LinearStyle::gated_delta || l.style == LinearStyle::kda ? 6 : 4);
}

}  // namespace

LayerFlops mixer_flops(const Model& model, const LayerKind& kind) {
  LayerFlops flops;
  flops.projections = multiply_adds(weights::attention(model, kind));
  if (kind.linear) flops.linear_core = linear_core_flops(*kind.linear);
  return flops;
}

LayerFlops layer_flops(const Model& model, int layer) {
  LayerFlops flops;
  for (const std::size_t k : model.kinds_of(layer)) {
    const LayerKind& kind = model.kinds[k];
    const LayerFlops mixer = mixer_flops(model, kind);
    flops.projections += kind.per_layer * mixer.projections;
    flops.linear_core += kind.per_layer * mixer.linear_core;
  }
  if (model.is_moe_layer(layer)) {
    flops.mlp = moe_flops(model);
  } else {
    const auto width = model.mlp_width(layer);
    if (!width) throw MissingValue({model.name, 0, "/intermediate_size"}, "intermediate_size", "add the key");
    flops.mlp = *width == 0 ? 0 : mlp_flops(model, *width);
  }
  return flops;
}

StepFlops step_flops(const Model& model, const Workload& workload, std::int64_t tokens) {
  if (!model.vocab) throw MissingValue({model.name, 0, "/vocab_size"}, "vocab_size", "add the key");
  const auto n = static_cast<double>(tokens);
  StepFlops step;
  for (const AlikeLayers& layers : alike_layers(model, 0, static_cast<int>(model.layers))) {
    const LayerFlops layer = layer_flops(model, layers.layer);
    const double times = n * static_cast<double>(layers.count);
    step.projections += times * layer.projections;
    step.linear_core += times * layer.linear_core;
    step.mlp += times * layer.mlp;
  }
  step.logits = n * 2 * static_cast<double>(model.hidden) * static_cast<double>(*model.vocab);
  step.forward = step.projections + step.linear_core + step.mlp + step.logits;
  if (!workload.training) return step;
  step.backward = 2 * step.forward;
  if (layer_again(workload.recompute) || workload.recompute == Recompute::keep_attention)
    step.recompute = step.projections + step.linear_core + step.mlp;
  if (workload.recompute == Recompute::mlp) step.recompute = step.mlp;
  return step;
}

double ulysses_paper_flops(const DenseShape& s) {
  return 96 * s.batch * s.seq * s.layers * s.hidden * s.hidden *
         (1 + s.seq / (6 * s.hidden) + s.vocab / (16 * s.layers * s.hidden));
}

}  // namespace usp
