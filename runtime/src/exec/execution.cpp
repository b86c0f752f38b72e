// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/execution.hpp"

#include <algorithm>
#include <string>

namespace usp {

Traffic planned_traffic(const RankSchedule& schedule, int ranks) {
  Traffic traffic;
  traffic.reset(static_cast<int>(schedule.ticks.size()), ranks);
  for (const Transfer& t : schedule.transfers)
    if (t.peer != schedule.rank) traffic.count(t.start, t.peer, t.send, t.bytes);
  return traffic;
}

std::string difference(const Traffic& planned, const Traffic& executed) {
  for (int tick = 0; tick < std::max(planned.ticks(), executed.ticks()); ++tick)
    for (int peer = 0; peer < std::max(planned.ranks(), executed.ranks()); ++peer)
      for (const bool send : {true, false}) {
        const i64 plan = planned.bytes(tick, peer, send), run = executed.bytes(tick, peer, send);
        if (plan != run)
          return "tick " + std::to_string(tick) + (send ? ", to rank " : ", from rank ") +
                 std::to_string(peer) + ": planned " + std::to_string(plan) + " bytes, executed " +
                 std::to_string(run);
      }
  return "";
}

}  // namespace usp
