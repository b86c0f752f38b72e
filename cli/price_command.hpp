// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/plan_attention.hpp"

#include <CLI/CLI.hpp>

#include <string>

namespace usp::cli {

/// The `usp price` that prices a plan of `usp plan attention` by itself, to the same time, from the arguments
/// that the plan's verb was given. Empty where `usp price` has no flag for what the call, its groups or its
/// devices are.
[[nodiscard]] std::string price_command(const CLI::App& verb, const AttentionCandidate& plan);

}  // namespace usp::cli
