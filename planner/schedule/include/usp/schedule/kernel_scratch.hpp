// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/rank_schedule.hpp"

#include <vector>

namespace usp {
struct AttentionPlan;
}  // namespace usp

namespace usp::schedule {

/// Device memory that the plan's backend takes for itself on one rank, beside tensors, workspace and what
/// forward saves, as BackendTraits::add_scratch counts it: blocks that wait to be merged, sums that wait to
/// be rounded, workspace of libraries. Tables of tiles, some kilobytes, are not counted. `schedules`: the
/// passes that will run. Assumes what plans assume of a run (choose_backend) and aligned rows; at most this,
/// since hopper sums no dq where the heads of a KV head share tiles of queries. 0 for the host.
[[nodiscard]] i64 kernel_scratch_bytes(const AttentionPlan& plan,
                                       const std::vector<const RankSchedule*>& schedules);

}  // namespace usp::schedule
