// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/plan.hpp"

/// A method of the tests alone: the ring is cut into segments of three stages. The first block of a segment
/// comes straight from its owner, the others from the neighbour that attended them last; a partial travels to
/// the end of its segment.
namespace usp::test {

inline constexpr int segment = 3;

inline void segmented_stages(const Mesh& mesh, std::vector<Stage>& out) {
  const int ring = mesh.ring();
  for (int k = 0; k < ring; ++k) {
    Stage stage;
    stage.offsets = {static_cast<std::int16_t>(k), static_cast<std::int16_t>(k + 1)};
    if (k > 0) {
      stage.slot = k % 2 == 0 ? BufferSlot::ring0 : BufferSlot::ring1;
      stage.parent = k % segment == 0 ? 0 : k - 1;
      stage.fetched_with = k - 1;
    }
    stage.partial_travels = k % segment != segment - 1 && k + 1 < ring;
    out.push_back(stage);
  }
}

inline const MethodTraits segmented_ring_traits = {
    .word = "segmented_ring",
    .partials_travel = true,
    .problem = [](const AttentionPlan& plan) -> std::optional<PlanProblem> {
      if (plan.mesh.ring_outer == 1) return {};
      return PlanProblem{"mesh/ring_outer", "must be 1: segments have one level"};
    },
    .stages = segmented_stages,
    .displacements = [](const Mesh& mesh) -> i64 { return mesh.ring(); },
    .summary = [](const Mesh&) -> std::string { return "segmented_ring: a ring in segments"; }};

inline const Method segmented_ring{segmented_ring_traits};

}  // namespace usp::test
