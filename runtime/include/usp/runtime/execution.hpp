// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/rank_schedule.hpp"

#include <string>
#include <vector>

namespace usp {

/// When the parts of one tick began and ended on this rank; seconds since the pass began. On a GPU these are
/// times of enqueueing, or of the stream itself with ExecutorOptions::stream_times.
struct TickTimes {
  double begin_s = 0;
  double posted_s = 0;    ///< buffers begun, transfers started
  double computed_s = 0;  ///< steps done; what follows is exposed communication
  double end_s = 0;       ///< arrivals applied, due sends complete
};

/// Bytes of one transfer of the schedule with another rank.
struct TransferRecord {
  std::int32_t tick = 0;  ///< in which it starts
  std::int32_t peer = 0;
  bool send = false;
  i64 planned_bytes = 0;
  i64 executed_bytes = 0;  ///< counted where the bytes reached memcpy, MPI or the driver
};

/// What one pass did on this rank.
struct PassRecord {
  Pass pass = Pass::forward;
  std::vector<TransferRecord> transfers;  ///< in the schedule's order, without those of the rank to itself
  std::vector<TickTimes> ticks;
  i64 gated_calls = 0;      ///< that began before all their blocks had arrived, or could have
  i64 workspace_bytes = 0;  ///< planned
  i64 touched_bytes = -1;   ///< high-water mark of touched bytes; -1: not measured

  [[nodiscard]] i64 planned_bytes(bool send) const;
  [[nodiscard]] i64 executed_bytes(bool send) const;
};

/// The transfers of a schedule with other ranks; nothing executed yet.
[[nodiscard]] std::vector<TransferRecord> planned_transfers(const schedule::RankSchedule& schedule);
/// The same, added up: what was sent, then what was received, of tick 0 and peer 0.
[[nodiscard]] std::vector<TransferRecord> summed_transfers(const schedule::RankSchedule& schedule);
/// The first transfer whose executed bytes are not the planned ones, in words; empty: none.
[[nodiscard]] std::string difference(const std::vector<TransferRecord>& transfers);

}  // namespace usp
