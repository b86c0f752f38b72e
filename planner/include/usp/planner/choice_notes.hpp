// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/plan.hpp"

#include <string>
#include <vector>

namespace usp {

/// What one should know of a plan whose flags decide part of it: what the fixed degrees, methods and layouts
/// cost against a free choice, and KV heads that several Ulysses ranks hold. Plans once more where something
/// is fixed.
[[nodiscard]] std::vector<std::string> choice_notes(const PlanRequest& request, const PlanCandidate& best);

/// plan_step, with these notes.
[[nodiscard]] PlanResult plan_noted(const PlanRequest& request);

}  // namespace usp
