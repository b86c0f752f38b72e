// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/communicator.hpp"

#include <exception>
#include <string>
#include <vector>

namespace usp::comm {

/// "rank 3", "ranks 1, 2 and 5".
[[nodiscard]] std::string list_ranks(std::vector<int> ranks);
/// "'kv_exchange' of tick 4", "'barrier'".
[[nodiscard]] std::string name_operation(const std::string& operation, std::int32_t tick);

/// A wait of `rank` for `missing` exceeded the watchdog time. `hint` is appended (may be empty).
[[nodiscard]] CommunicationFault late_fault(const Message& message, int rank, std::vector<int> missing,
                                            double watchdog_s, const std::string& hint);
/// CommOptions::interrupted ended a wait of `rank`.
[[nodiscard]] CommunicationFault interrupted_fault(const Message& message, int rank);
/// Both ends of a message name different sizes. `rank` noticed; ranks are those of the job.
[[nodiscard]] CommunicationFault size_fault(const Message& message, int rank, int peer, i64 mine, i64 theirs);
/// A rank left its work by an exception of its own.
[[nodiscard]] CommunicationFault failure_fault(int rank, const std::string& what);
/// A communicator ends while messages are still in flight.
[[nodiscard]] CommunicationFault unfinished_fault(int rank, i64 messages);

/// What an exception means for the others: the fault it carries, or failure_fault.
[[nodiscard]] CommunicationFault fault_of(const std::exception_ptr& error, int rank);

}  // namespace usp::comm
