// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "step_pricer.hpp"

#include <optional>
#include <vector>

namespace usp {

/// Ways to split a replica's batch and layers that a request leaves for one mesh: microbatches of a given
/// global batch, virtual stages, expert ranks. The first has the fewest rows per microbatch. Empty: none.
/// @param tensor ranks, which expert groups may span
[[nodiscard]] std::vector<StepSplit> splits_of(const PlanRequest& request, int pipeline, int data,
                                               int sequence_ranks, int tensor);

/// Why splits_of is empty.
[[nodiscard]] std::string why_no_split(const PlanRequest& request, int pipeline, int data);

/// What a mesh comes to with the choices that its attention schedule does not depend on.
struct MemoryChoices {
  std::optional<PlanCandidate> fastest;  ///< of those that fit
  PlanCandidate smallest;
};

/// Decides recompute (and on how many layers), ZeRO stage and split.
/// @param attention of `choice`, whose split is one of `splits`
[[nodiscard]] MemoryChoices choose_memory(const PlanRequest& request, StepPricer& pricer,
                                          const Choice& choice, const std::vector<LayerAttention>& attention,
                                          const std::vector<StepSplit>& splits);

}  // namespace usp
