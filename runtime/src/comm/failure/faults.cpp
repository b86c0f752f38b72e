// SPDX-License-Identifier: Apache-2.0
#include "faults.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

namespace usp::comm {

std::string list_ranks(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::ostringstream text;
  text << (ranks.size() == 1 ? "rank " : "ranks ");
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text << (i + 1 == ranks.size() ? " and " : ", ");
    text << ranks[i];
  }
  return text.str();
}

std::string name_operation(const std::string& operation, std::int32_t tick) {
  return fmt::format("'{}'{}", operation, tick >= 0 ? fmt::format(" of tick {}", tick) : "");
}

CommunicationFault late_fault(const Message& message, int rank, std::vector<int> missing, double watchdog_s,
                              const std::string& hint) {
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  std::ostringstream text;
  text << "rank " << rank << " waited " << watchdog_s << " s in "
       << name_operation(message.operation, message.tick) << " for " << list_ranks(missing)
       << ", which did not arrive" << hint
       << "; the job ends. See what they were doing, or allow more time with the watchdog setting";
  return {message.operation, message.tick, rank, std::move(missing), text.str()};
}

CommunicationFault interrupted_fault(const Message& message, int rank) {
  return {message.operation,
          message.tick,
          rank,
          {},
          fmt::format("rank {} was interrupted while it waited in {}; the job ends", rank,
                      name_operation(message.operation, message.tick))};
}

CommunicationFault size_fault(const Message& message, int rank, int peer, i64 mine, i64 theirs) {
  std::ostringstream text;
  text << "rank " << rank << (message.send ? " sends " : " expects ") << mine << " bytes in "
       << name_operation(message.operation, message.tick) << ", but rank " << peer
       << (message.send ? " expects " : " sends ");
  if (theirs >= 0) {
    text << theirs;
  } else {
    text << "more";
  }
  text << " (tag " << message.tag << "); the ranks do not follow the same schedule";
  return {message.operation, message.tick, rank, {peer}, text.str()};
}

CommunicationFault failure_fault(int rank, const std::string& what) {
  return {"run", -1, rank, {rank}, fmt::format("rank {} failed: {}", rank, what)};
}

CommunicationFault unfinished_fault(int rank, i64 messages) {
  return failure_fault(
      rank, fmt::format("it left its communicator with {} messages posted and not waited for", messages));
}

CommunicationFault fault_of(const std::exception_ptr& error, int rank) {
  try {
    std::rethrow_exception(error);
  } catch (const CommunicationError& known) {
    return known.fault();
  } catch (const std::exception& known) {
    return failure_fault(rank, known.what());
  } catch (...) {
    return failure_fault(rank, "an exception without text");
  }
}

}  // namespace usp::comm
