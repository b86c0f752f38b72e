// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/plan.hpp"

#include <vector>

namespace usp {

/// One way to divide the devices.
struct Degrees {
  int tensor = 1, data = 1, ring = 1, ulysses = 1;
};

/// All that the request's fixed degrees leave. @param devices_per_node bounds tensor parallelism
/// @param pipeline stages; 0: those of the request's workload
[[nodiscard]] std::vector<Degrees> degrees_of(const PlanRequest& request, i64 world, int devices_per_node,
                                              int pipeline = 0);

/// The layouts to price under some degrees; placement and uneven heads are left to the caller.
[[nodiscard]] std::vector<Choice> alternatives_of(const PlanRequest& request, const Degrees& degrees);

/// Most ticks that one command prices: 8 to 13 s.
inline constexpr double max_search_ticks = 1.4e8;
/// Ticks of all schedules that a search of the request on so many devices prices, and what else takes as
/// long.
[[nodiscard]] double search_ticks(const PlanRequest& request, i64 world, int devices_per_node);
/// Throws Infeasible with what to do when `ticks` are too many. @param what "the search", "the sweep"
void check_ticks(double ticks, const std::string& what);

}  // namespace usp
