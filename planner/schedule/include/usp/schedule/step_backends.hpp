// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/rank_schedule.hpp"

#include <optional>
#include <string>
#include <vector>

namespace usp::schedule {

/// How many attend steps of a pass each backend computes, over all ranks.
struct StepBackends {
  i64 cpu = 0, mma = 0, cudnn = 0;
  i64 mixed = 0;                       ///< cudnn's that leave some slices to mma
  std::vector<UnsupportedReason> why;  ///< what a plan for cuDNN leaves to mma, and why; ascending
  [[nodiscard]] i64 steps() const { return cpu + mma + cudnn; }
  friend bool operator==(const StepBackends& a, const StepBackends& b) {
    return a.cpu == b.cpu && a.mma == b.mma && a.cudnn == b.cudnn && a.mixed == b.mixed && a.why == b.why;
  }
};

/// Adds the steps of one rank.
void add_steps(StepBackends& sum, const RankSchedule& schedule);

/// "one triangle of 8192 x 8192", "3 blocks; 1 slice to mma: ...", "the cuDNN backend does not support
/// softcap"; empty for a step of a plan for another backend than cuDNN. Slices are those of the step.
[[nodiscard]] std::string reason_of(const StepBackend& step, Pass pass, const Slice* slices, i64 count);

/// "cudnn: forward 3 of 4 steps (1 in part), 1 mma; backward 4 of 4 steps; <reasons>" for a plan that
/// asks for `backend`; passes without a count are left out.
[[nodiscard]] std::string backends_text(Backend backend, const std::optional<StepBackends>& forward,
                                        const std::optional<StepBackends>& backward);

/// What is said of a plan of which cuDNN, that it asks for, computes nothing in some pass. Empty where it
/// computes something. A pass without a count is judged by what all its calls share.
[[nodiscard]] std::string nothing_for_cudnn_note(const AttentionPlan& plan, bool training,
                                                 const std::optional<StepBackends>& forward,
                                                 const std::optional<StepBackends>& backward);

}  // namespace usp::schedule
