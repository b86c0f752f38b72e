// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "doubts.hpp"

#include "usp/planner/plan.hpp"

#include <algorithm>
#include <tuple>
#include <vector>

namespace usp {

/// Least tensor degree first, then the shortest ring, which crosses the fewest hosts.
[[nodiscard]] inline std::tuple<int, int, bool, int, int> complexity(const Choice& choice) {
  return {choice.tensor(), choice.mesh.ring(), choice.method->two_level_ring, choice.head_chunks,
          choice.gate_phases};
}

/// Of candidates as fast as the fastest (same_time) the simplest goes to the front. `list` is sorted by time
/// per token, those that fit first. @param candidate_of a reference to the PlanCandidate of an element
template <class Element, class CandidateOf>
void lead_with_simplest(std::vector<Element>& list, const CandidateOf& candidate_of) {
  const double limit = candidate_of(list.front()).seconds_per_token * (1 + same_time);
  const auto end = std::find_if(list.begin(), list.end(), [&](const Element& element) {
    return !candidate_of(element).fits || candidate_of(element).seconds_per_token > limit;
  });
  const auto simplest = std::min_element(list.begin(), end, [&](const Element& a, const Element& b) {
    return complexity(candidate_of(a).choice) < complexity(candidate_of(b).choice);
  });
  if (simplest != end) std::rotate(list.begin(), simplest, simplest + 1);
}

}  // namespace usp
