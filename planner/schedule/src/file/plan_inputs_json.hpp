// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/json.hpp"
#include "usp/schedule/plan_inputs.hpp"

namespace usp {

/// The key "inputs" of a plan file. execution.overlap is the plan's own "overlap".
[[nodiscard]] Json inputs_json(const PlanInputs& inputs);
/// Parts of it, which requests share; null: free.
[[nodiscard]] Json fixed_json(const Constraints& fixed);
[[nodiscard]] Json memory_json(const MemoryPolicy& memory);
/// ["input", "mlp"]
[[nodiscard]] Json offload_json(Offload offload);

[[nodiscard]] Constraints fixed_in(ObjectReader reader);
[[nodiscard]] PlanInputs inputs_in(ObjectReader reader, bool overlap);

}  // namespace usp
