// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/model.hpp"

#include <cstdint>
#include <optional>

/// Learnt numbers of one layer, split into matrices (each weight is one multiply-add per token) and vectors.
/// Parameters and FLOPs are both counted from here.
namespace usp::weights {

/// Wide enough for a product of the largest values the config reader lets through.
__extension__ using Wide = __int128;

struct Weights {
  Wide matrices = 0;
  Wide vectors = 0;
  [[nodiscard]] Wide total() const { return matrices + vectors; }
};

/// Projections of the attention of one kind of layer, with biases, qk norms and sinks where known.
[[nodiscard]] Weights attention(const Model& model, const LayerKind& kind);

/// An MLP `width` wide; empty when the config does not say how many matrices it has.
[[nodiscard]] std::optional<Weights> mlp(const Model& model, std::int64_t width);

/// Router with its bias, and the gate of the shared expert.
[[nodiscard]] Weights router(const Model& model);

}  // namespace usp::weights
