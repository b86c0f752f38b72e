// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/model.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace usp {

/// Learnt numbers of one layer, biases included. Empty where the config does not say enough.
struct LayerParameters {
  std::int64_t attention = 0;  ///< projections, latent projections, qk norms, sinks; linear attention too
  std::optional<std::int64_t> mlp;             ///< dense MLP, shared experts, router
  std::optional<std::int64_t> experts;         ///< routed experts, all of them; 0 on dense layers
  std::optional<std::int64_t> active_experts;  ///< those that one token uses
  std::int64_t norms = 0;                      ///< over the hidden size

  [[nodiscard]] std::optional<std::int64_t> total() const;
  [[nodiscard]] std::optional<std::int64_t> active() const;
};

/// Exact parameter count by component.
struct ParameterCount {
  std::optional<std::int64_t> embedding;  ///< token table and learnt positions
  std::optional<std::int64_t> lm_head;    ///< 0 when tied
  std::int64_t attention = 0;             ///< softmax layers
  std::int64_t linear_attention = 0;
  std::optional<std::int64_t> mlp;  ///< dense MLPs, shared experts and routers
  std::optional<std::int64_t> experts;
  std::int64_t norms = 0;
  std::int64_t outer_norms = 0;  ///< part of `norms`: outside the layers
  std::optional<std::int64_t> total;
  std::optional<std::int64_t> active;  ///< total without the routed experts that a token does not use
  std::vector<LayerParameters> layers;
  std::vector<std::string> notes;  ///< what could not be counted, and why
};

/// Throws InvalidInput when a count does not fit 63 bits.
[[nodiscard]] ParameterCount count_parameters(const Model& model);

}  // namespace usp
