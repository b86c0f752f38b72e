// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/message.hpp"
#include "usp/schedule/rank_schedule.hpp"

#include <vector>

namespace usp {

/// When the parts of one tick began and ended on this rank; seconds since the pass began. On a GPU these are
/// times of enqueueing, or of the stream itself with ExecutorOptions::stream_times.
struct TickTimes {
  double begin_s = 0;
  double posted_s = 0;    ///< buffers begun, messages posted
  double computed_s = 0;  ///< steps done; what follows is exposed communication
  double end_s = 0;       ///< arrivals applied, due sends complete
};

/// What one pass did on this rank.
struct PassRecord {
  Pass pass = Pass::forward;
  comm::Traffic planned;   ///< from the schedule: per start tick and peer
  comm::Traffic executed;  ///< counted where the bytes reached the driver
  std::vector<TickTimes> ticks;
  i64 workspace_bytes = 0;  ///< planned
  i64 touched_bytes = -1;   ///< high-water mark of touched bytes; -1: not measured
};

/// Bytes per start tick and peer that a schedule says. Messages of a rank to itself carry none.
[[nodiscard]] comm::Traffic planned_traffic(const schedule::RankSchedule& schedule, int ranks);
/// The same in memory that is there already.
void plan_traffic(const schedule::RankSchedule& schedule, int ranks, comm::Traffic& out);
/// The first difference in words; empty when the two agree everywhere.
[[nodiscard]] std::string difference(const comm::Traffic& planned, const comm::Traffic& executed);

}  // namespace usp
