// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/communicator.hpp"

#include <functional>

namespace usp {

/// Runs `body` once per rank: on threads of this process; alone when there is one rank. Returns whether rank
/// 0 ran in this process, which is the one to report. Errors of a rank end the others and are rethrown.
bool run_ranks(int ranks, const CommOptions& options, const std::function<void(Communicator&)>& body);

}  // namespace usp
