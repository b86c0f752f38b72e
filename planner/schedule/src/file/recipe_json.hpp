// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/json.hpp"
#include "usp/schedule/plan.hpp"

/// Images of one attention call, which plan files and requests share. Keys keep their order: plan files sign
/// it.
namespace usp {

[[nodiscard]] Json mesh_json(const Mesh& mesh);
[[nodiscard]] Json shape_json(const AttentionShape& shape);
/// A bound beyond all positions is null.
[[nodiscard]] Json band_json(const Band& band);
/// A scale of 0, the default of the head dimension, is null.
[[nodiscard]] Json score_rules_json(const ScoreRules& score);
[[nodiscard]] Json ranges_json(const std::vector<Range>& ranges);
/// All fields of a plan but its mesh, which a plan file stores once.
[[nodiscard]] Json recipe_json(const AttentionPlan& plan);

}  // namespace usp
