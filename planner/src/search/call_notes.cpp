// SPDX-License-Identifier: Apache-2.0
// What the answer for one call says beside its plan.
#include "backend_choice.hpp"

#include "usp/base/units.hpp"
#include "usp/planner/detail/card_backends.hpp"
#include "usp/planner/plan_attention.hpp"

#include <fmt/format.h>

#include <cmath>

namespace usp {

std::string priced_devices_note(const AttentionRequest& request) {
  return CardBackends(*request.cluster, *request.calibration)
      .priced_devices_note(call_of(request, request.backend.value_or(Backend{})), request.training,
                           request.all_devices);
}

std::string block_pattern_note(const ScoreRules& score) {
  return fmt::format(
      "block pattern: the blocks of {} tokens that it skips come with the run, so that times, bytes and "
      "memory are those of the mask without it: an upper bound",
      score.block_tokens);
}

std::string stall_note(const Calibration& calibration, Backend computes) {
  if (!computes->waits_inside || calibration.kernel_of(computes).data().knows_multiprocessors()) return "";
  return "gates: no calibration says how many multiprocessors the card has, so that the wait of the first "
         "tiles for the "
         "last block is not in the price";
}

std::string gates_note(double gated_s, double ungated_s) {
  constexpr double same = 5e-4;  // is 0.0% in one digit
  const double change = ungated_s / gated_s - 1;
  if (std::abs(change) < same) return "gates: this layout without them is priced as long (--gated)";
  return fmt::format("gates: this layout without them takes {} {} (--gated)",
                     format_percent(std::abs(change)), change < 0 ? "less" : "more");
}

}  // namespace usp
