// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/execution.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace usp {

void plan_traffic(const schedule::RankSchedule& schedule, int ranks, comm::Traffic& out) {
  out.reset(static_cast<int>(schedule.ticks.size()), ranks);
  for (const schedule::Transfer& t : schedule.transfers)
    if (t.peer != schedule.rank) out.count(t.start, t.peer, t.send, t.bytes);
}

comm::Traffic planned_traffic(const schedule::RankSchedule& schedule, int ranks) {
  comm::Traffic traffic;
  plan_traffic(schedule, ranks, traffic);
  return traffic;
}

std::string difference(const comm::Traffic& planned, const comm::Traffic& executed) {
  for (int tick = 0; tick < std::max(planned.ticks(), executed.ticks()); ++tick)
    for (int peer = 0; peer < std::max(planned.ranks(), executed.ranks()); ++peer)
      for (const bool send : {true, false}) {
        const i64 plan = planned.bytes(tick, peer, send), run = executed.bytes(tick, peer, send);
        if (plan != run)
          return fmt::format("tick {}, {} rank {}: planned {} bytes, executed {}", tick, send ? "to" : "from",
                             peer, plan, run);
      }
  return "";
}

}  // namespace usp
