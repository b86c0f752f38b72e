// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/execution.hpp"

#include <fmt/format.h>

#include <string>

namespace usp {
namespace {

[[nodiscard]] i64 sum_of(const std::vector<TransferRecord>& transfers, bool send,
                         i64 TransferRecord::*bytes) {
  i64 sum = 0;
  for (const TransferRecord& t : transfers)
    if (t.send == send) sum += t.*bytes;
  return sum;
}

}  // namespace

i64 PassRecord::planned_bytes(bool send) const {
  return sum_of(transfers, send, &TransferRecord::planned_bytes);
}

i64 PassRecord::executed_bytes(bool send) const {
  return sum_of(transfers, send, &TransferRecord::executed_bytes);
}

std::vector<TransferRecord> planned_transfers(const schedule::RankSchedule& schedule) {
  std::vector<TransferRecord> transfers;
  for (const schedule::Transfer& t : schedule.transfers)
    if (t.peer != schedule.rank) transfers.push_back({t.start, t.peer, t.send, t.bytes, 0});
  return transfers;
}

std::vector<TransferRecord> summed_transfers(const schedule::RankSchedule& schedule) {
  std::vector<TransferRecord> sums{{.send = true}, {.send = false}};
  for (const schedule::Transfer& t : schedule.transfers)
    if (t.peer != schedule.rank) sums[t.send ? 0 : 1].planned_bytes += t.bytes;
  return sums;
}

std::string difference(const std::vector<TransferRecord>& transfers) {
  for (const TransferRecord& t : transfers)
    if (t.planned_bytes != t.executed_bytes)
      return fmt::format("tick {}, {} rank {}: planned {} bytes, executed {}", t.tick, t.send ? "to" : "from",
                         t.peer, t.planned_bytes, t.executed_bytes);
  return "";
}

}  // namespace usp
