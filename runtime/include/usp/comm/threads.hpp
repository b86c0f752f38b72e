// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/communicator.hpp"

#include <functional>

namespace usp::comm {

/// Runs `body` on `ranks` threads of this process, each with a communicator of all of them; joins. A rank
/// that throws aborts the others; the first error is rethrown with its own type.
void run_threads(int ranks, const CommOptions& options, const std::function<void(Communicator&)>& body);

}  // namespace usp::comm
