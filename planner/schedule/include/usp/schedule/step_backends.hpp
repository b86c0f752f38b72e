// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/rank_schedule.hpp"

#include <optional>
#include <string>
#include <vector>

namespace usp::schedule {

/// How many attend steps of a pass each backend computes, over all ranks.
struct StepBackends {
  struct Count {
    Backend backend;
    i64 steps = 0;
  };
  std::vector<Count> counts;           ///< a backend once; none is zero
  i64 mixed = 0;                       ///< of the plan's backend, that leave some slices to its fallback
  std::vector<UnsupportedReason> why;  ///< what the plan's backend leaves to its fallback, and why; ascending

  void add(Backend backend, i64 steps);
  void add(const StepBackends& other);
  [[nodiscard]] i64 of(Backend backend) const;
  [[nodiscard]] i64 steps() const;
  friend bool operator==(const StepBackends& a, const StepBackends& b);
};

/// Adds the steps of one rank.
void add_steps(StepBackends& sum, const RankSchedule& schedule);

/// "one triangle of 8192 x 8192", "3 blocks; 1 slice to mma: ...", "the cuDNN backend does not support
/// softcap"; empty for a step of a plan whose backend takes any slices. Slices are those of the step.
[[nodiscard]] std::string reason_of(Backend planned, const StepBackend& step, Pass pass, const Slice* slices,
                                    i64 count);

/// "cudnn: forward 3 of 4 steps (1 in part), 1 mma; backward 4 of 4 steps; <reasons>" for a plan that
/// asks for `backend`; passes without a count are left out.
[[nodiscard]] std::string backends_text(Backend backend, const std::optional<StepBackends>& forward,
                                        const std::optional<StepBackends>& backward);

/// What is said of a plan whose backend leaves all of some pass to its fallback. Empty where it computes
/// something. A pass without a count is judged by what all its calls share.
[[nodiscard]] std::string all_left_note(const AttentionPlan& plan, bool training,
                                        const std::optional<StepBackends>& forward,
                                        const std::optional<StepBackends>& backward);

}  // namespace usp::schedule
