// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/plan.hpp"

/// What stage graphs are put together from.
namespace usp {

[[nodiscard]] inline RingOffsets offsets(int begin, int end) {
  return {static_cast<std::int16_t>(begin), static_cast<std::int16_t>(end)};
}

[[nodiscard]] inline Stage own_row() {
  Stage stage;
  stage.offsets = offsets(0, 1);
  return stage;
}

/// Block `offset`, sent on by the rank that attends it in stage `parent`, which is when it may start.
[[nodiscard]] inline Stage block(int offset, BufferSlot slot, int parent) {
  Stage stage;
  stage.offsets = offsets(offset, offset + 1);
  stage.slot = slot;
  stage.parent = stage.fetched_with = parent;
  return stage;
}

/// The two slots of blocks that travel along a ring alternate.
[[nodiscard]] inline BufferSlot ring_slot(int stage) {
  return stage % 2 == 0 ? BufferSlot::ring0 : BufferSlot::ring1;
}

/// Methods of one level: the mesh has no outer ring.
[[nodiscard]] std::optional<PlanProblem> outer_ring_problem(const AttentionPlan& plan);

}  // namespace usp
