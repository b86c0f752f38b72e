// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "parts.hpp"
#include "rank_device.hpp"
#include "timer.hpp"

#include <functional>

namespace usp::measure {

/// What one rank measures parts with; the same on all ranks but for `rank`. What it refers to outlives it.
struct Workbench {
  RankDevice& device;
  Timer& timer;
  const Machine& machine;
  const Scope& scope;
  int rank = 0;
  DType dtype = DType::fp32;
  const Results& results;  ///< of the parts before
  /// Whether the time of the part is up: sizes end as soon as their curve says enough. Collective.
  std::function<bool()> time_is_up;

  /// Of what a rank computes alone: where ranks share cores, so many take part as there are cores.
  [[nodiscard]] Sample measure_local(const std::function<void()>& call) const;
};

/// How much of a scope is repeated where there is time, and where there is little.
[[nodiscard]] Pace pace_of(const Scope& scope, bool hurried);

/// Collective. Empty where the machine does not let the part be measured: no library of products, or calls
/// that their backend leaves to another.
[[nodiscard]] Rows measure(const Part& part, const Workbench& bench);

}  // namespace usp::measure
