// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recipe_json.hpp"

#include "usp/base/json.hpp"
#include "usp/planner/explain.hpp"
#include "usp/planner/plan_attention.hpp"
#include "usp/planner/price_report.hpp"
#include "usp/planner/score.hpp"
#include "usp/planner/whatif.hpp"

/// Images of the requests, which outputs echo under the key "request": keys are those of the C++ fields and
/// of plan files; a model and a calibration are their names, a cluster its name, size and digest; a free or
/// absent field is null. Include only from .cpp files.
namespace usp {

[[nodiscard]] Json request_json(const PlanRequest& request);
[[nodiscard]] Json request_json(const WhatIfRequest& request);
[[nodiscard]] Json request_json(const AttentionRequest& request);
/// Of `usp price`; the report holds the call.
[[nodiscard]] Json request_json(const PriceReport& report);
[[nodiscard]] Json request_json(const ScoreReport& report);
/// @param digest of the plan file
[[nodiscard]] Json request_json(const ExplainRequest& request, const std::string& digest);

/// A value of an axis in SI units: rates in bytes per second.
[[nodiscard]] Json axis_value_json(AxisKind kind, const AxisValue& value);

}  // namespace usp
