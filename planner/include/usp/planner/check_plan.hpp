// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/attention.hpp"

/// What a plan of one attention call must satisfy, whoever made it: a file, the C API or a caller's own code.
namespace usp {

/// Throws InvalidInput unless `plan` can be expanded and run: sizes in range, heads that divide, degrees that
/// leave no rank without a query head, an outer ring only under double_ring, a band that shows some pair,
/// finite scores, and ranges that ascend within their tokens. `where().token` names the field by its path
/// ("shape/kv_heads", "mesh/ulysses", "replicated_q/1"); `problem()` reads on from the field's name.
void check_attention_plan(const AttentionPlan& plan);

}  // namespace usp
