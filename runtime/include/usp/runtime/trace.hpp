// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/runtime/call_run.hpp"
#include "usp/schedule/rank_schedule.hpp"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace usp {

/// A Chrome trace (opens in Perfetto): one process per rank with the tracks "planned" and "executed". Planned
/// ticks are priced as for threads of one host (guessed rates) and scaled so that a pass is as long as it was
/// measured; args carry tick, steps, bytes posted, and the unscaled prediction.
[[nodiscard]] std::string chrome_trace(const AttentionPlan& plan, const Documents& documents,
                                       const RunResult& run);

/// Words of the operations of a tick, as its span in a trace lists them; empty beyond the last tick.
[[nodiscard]] std::vector<std::string_view> traced_steps(const schedule::RankSchedule& schedule,
                                                         std::size_t tick);

}  // namespace usp
