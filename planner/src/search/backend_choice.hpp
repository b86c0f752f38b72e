// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/plan_attention.hpp"

#include <functional>

namespace usp {

/// The call of a request before it is laid out, for a backend.
[[nodiscard]] AttentionPlan call_of(const AttentionRequest& request, Backend backend);

/// The plan of a request that names no backend: that of the fastest backend whose kernels the calibration
/// measured, that runs on all cards and takes the whole call; else of the fastest that leaves steps to its
/// fallback; else of the host's. `search` plans a request that names one.
[[nodiscard]] AttentionResult with_fastest_backend(
    const AttentionRequest& request, const std::function<AttentionResult(const AttentionRequest&)>& search);

}  // namespace usp
