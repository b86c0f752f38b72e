// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/estimate.hpp"

#include <utility>

namespace usp {

std::vector<std::string> extrapolation_reasons(std::uint32_t extrapolation) {
  static constexpr std::pair<Extrapolation, const char*> phrases[] = {
      {Extrapolation::uncalibrated, "uncalibrated: data-sheet rates"},
      {Extrapolation::bytes, "transfer size outside the measured range"},
      {Extrapolation::group_size, "group size between or above the measured ones"},
      {Extrapolation::two_rank, "point-to-point from two-rank collective"},
      {Extrapolation::platform, "attention scaled from another accelerator"},
      {Extrapolation::head_dim, "head dim without measurements"},
      {Extrapolation::length, "sequence length outside the measured range"},
      {Extrapolation::full_mask, "full-mask rate from another part's table"},
      {Extrapolation::window, "sliding window priced by the causal fit"},
      {Extrapolation::backward, "backward from published forward/backward ratios"},
      {Extrapolation::element_type, "element type without measurements"},
      {Extrapolation::link_class, "links of another host of the same kind: measure this one first"},
      {Extrapolation::all_reduce, "all-reduce, not measured, as reduce-scatter and then all-gather"},
      {Extrapolation::inter_node, "inter-node rate from NIC rate and an assumed efficiency"},
  };
  std::vector<std::string> reasons;
  for (const auto& [bit, phrase] : phrases)
    if ((extrapolation & bits(bit)) != 0) reasons.emplace_back(phrase);
  return reasons;
}

}  // namespace usp
