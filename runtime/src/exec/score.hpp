// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/runtime/attention_call.hpp"
#include "usp/schedule/plan.hpp"

#include <cmath>

namespace usp {

/// Logit rules of a call: the plan's rules with the call's arguments.
[[nodiscard]] inline kernels::ScoreTerms score_terms(const AttentionPlan& plan, const AttentionInputs& in) {
  const ScoreRules& rules = plan.score;
  kernels::ScoreTerms terms;
  terms.scale = rules.scale != 0 ? rules.scale : 1 / std::sqrt(static_cast<double>(plan.shape.head_dim_qk));
  terms.softcap = rules.softcap;
  terms.alibi_slopes = in.alibi_slopes;
  terms.dropout = rules.dropout;
  terms.dropout_seed = layer_dropout_seed(in.dropout_seed, in.layer);
  terms.blocks = in.blocks;
  return terms;
}

}  // namespace usp
