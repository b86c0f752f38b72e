// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "socket.hpp"

#include "usp/comm/sockets.hpp"

#include <vector>

namespace usp::comm {

/// Makes a connection to every other rank: all tell rank 0 where they listen, rank 0 tells all, and each asks
/// the ranks below it. Collective. Returns them by rank; this rank's own stays closed. Throws
/// CommunicationError when a rank does not come within the watchdog time or leaves meanwhile,
/// EnvironmentError when this rank is refused or the port is taken, UsageError for a job without sense.
[[nodiscard]] std::vector<Socket> meet(const SocketJob& job, double watchdog_s);

}  // namespace usp::comm
