// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/plan.hpp"

#include <string>
#include <vector>

namespace usp {

/// What decides which ways of exchange are worth pricing on one mesh.
struct AlternativesInput {
  const Constraints* fixed = nullptr;
  int ring = 1, ulysses = 1;
  i64 kv_heads = 1;
  bool causal = true;
  bool packed = false;  ///< several documents
};

/// Method x mesh cut x layout x dKV return x head chunks x gate phases x axis order, for given degrees that
/// are legal (unsupported_reason).
[[nodiscard]] std::vector<Choice> alternatives(const AlternativesInput& input);

/// Which fixed choices to leave out where they alone left meshes without a layout: "no --gated".
[[nodiscard]] std::vector<std::string> fixed_choice_remedies(const Constraints& fixed,
                                                             const std::vector<Rejection>& rejected);

[[nodiscard]] std::vector<int> divisors_of(i64 n);

}  // namespace usp
