// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "socket.hpp"

#include "usp/comm/sockets.hpp"

#include <vector>

namespace usp::comm {

/// Whether the ranks of a job can meet on the loopback of this host, so that no other host can ask: all are
/// on it, or rank 0's host is named by nothing but loopback addresses. Throws EnvironmentError for a host
/// without an address, or with an unspecified one (0.0.0.0, ::).
[[nodiscard]] bool on_loopback(const SocketJob& job);

/// Connects all ranks: each sends its address to rank 0, rank 0 sends all addresses, and each connects to
/// the ranks below it. Both ends of each connection prove that they know the job's secret, where it has one.
/// Collective. Returns the connections by rank; this rank's own stays closed. Throws OpenNetworkError for a
/// job without a secret beyond loopback, CommunicationError when a rank does not come in time or leaves
/// meanwhile, EnvironmentError when this rank is refused or the port is taken, UsageError for a job without
/// sense.
[[nodiscard]] std::vector<Socket> connect_all(const SocketJob& job, const CommOptions& options);

}  // namespace usp::comm
