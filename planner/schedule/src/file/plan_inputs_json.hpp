// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/json.hpp"
#include "usp/schedule/plan_inputs.hpp"

namespace usp {

/// The key "inputs" of a plan file. execution.overlap is the plan's own "overlap".
[[nodiscard]] Json inputs_json(const PlanInputs& inputs);
[[nodiscard]] PlanInputs inputs_in(ObjectReader reader, bool overlap);

}  // namespace usp
