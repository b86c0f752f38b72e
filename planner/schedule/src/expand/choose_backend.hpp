// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/kernel_traits.hpp"
#include "usp/schedule/plan.hpp"

namespace usp::schedule {

/// The first of a backend's fallbacks that takes calls of a pass by their traits.
[[nodiscard]] Backend fallback_that_takes(const AttentionPlan& plan, Pass pass, Range query_heads);

/// Backend of an attend step (backward: of gradients) of these query heads and slices under a plan. A run's
/// own facts are assumed: sm_90, gradients that need not repeat bit for bit, aligned rows.
[[nodiscard]] StepBackend choose_backend(const AttentionPlan& plan, Pass pass, Range query_heads,
                                         const Slice* slices, i64 count);

}  // namespace usp::schedule
