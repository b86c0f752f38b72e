// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/attention.hpp"
#include "usp/schedule/kernel_traits.hpp"

namespace usp {

/// What a plan says of a call with these query heads.
[[nodiscard]] CallTraits call_traits(const AttentionPlan& plan, Pass pass, Range query_heads);

/// Who computes an attend step (backward: of gradients) of these query heads and slices under a plan. A run's
/// own facts are assumed: sm_90, gradients that need not repeat bit for bit, aligned rows.
[[nodiscard]] StepBackend choose_backend(const AttentionPlan& plan, Pass pass, Range query_heads,
                                         const Slice* slices, i64 count);

}  // namespace usp
