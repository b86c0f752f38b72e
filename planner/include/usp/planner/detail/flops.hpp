// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/model.hpp"
#include "usp/planner/workload.hpp"

#include <cstdint>

namespace usp {

/// Forward FLOPs of one token in one layer, outside the softmax attention core (whose FLOPs are counted from
/// its slices). A multiply-add is two.
struct LayerFlops {
  double projections = 0;  ///< q, k, v, o and latent projections, short convolutions
  double linear_core = 0;  ///< the recurrent state of a linear-attention layer: read, correct, update
  double mlp = 0;          ///< dense MLP, or router, shared and active routed experts

  [[nodiscard]] double total() const { return projections + linear_core + mlp; }
};

/// Of one mixer of that kind alone: `mlp` is 0.
[[nodiscard]] LayerFlops mixer_flops(const Model& model, const LayerKind& kind);
/// Throws MissingValue when the MLP's width or number of matrices is unknown.
[[nodiscard]] LayerFlops layer_flops(const Model& model, int layer);

/// FLOPs of a step for some tokens, outside the softmax attention core.
struct StepFlops {
  double projections = 0;  ///< forward
  double linear_core = 0;
  double mlp = 0;
  double logits = 0;
  double forward = 0;    ///< the sum of those above
  double backward = 0;   ///< twice the forward: gradients of inputs and of weights; 0 when not training
  double recompute = 0;  ///< layers (full, offload) or their MLPs (selective) once more

  [[nodiscard]] double total() const { return forward + backward + recompute; }
};

/// For `tokens` tokens on all ranks together. Throws MissingValue for an unknown vocabulary or MLP.
[[nodiscard]] StepFlops step_flops(const Model& model, const Workload& workload, std::int64_t tokens);

/// Shape of the multi-head, ungated transformers that the DeepSpeed-Ulysses tables measure.
struct DenseShape {
  double batch = 0;   ///< B
  double seq = 0;     ///< S
  double layers = 0;  ///< L
  double hidden = 0;  ///< h
  double vocab = 0;   ///< V
};

/// FLOPs of a training step as the DeepSpeed-Ulysses tables count them: 96 B S L h^2 (1 + S/(6h) + V/(16 L
/// h)), which is four passes (forward, recomputed forward, backward twice) of 24 B S L h^2 with attention not
/// causal. Source: Narayanan et al., arXiv 2104.04473, section 5.1.
[[nodiscard]] double ulysses_paper_flops(const DenseShape& shape);

}  // namespace usp
