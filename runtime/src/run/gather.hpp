// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/runtime/call_run.hpp"

#include <vector>

namespace usp {

/// Collective: the bytes of every rank, in rank order, on rank 0; elsewhere empty.
[[nodiscard]] std::vector<std::vector<std::byte>> gather(comm::Communicator& communicator,
                                                         const std::vector<std::byte>& mine);
/// Collective: what rank 0 collects, as gather.
[[nodiscard]] std::vector<Part> gather(comm::Communicator& communicator, const Part& mine);
[[nodiscard]] std::vector<RankResult> gather(comm::Communicator& communicator, const RankResult& mine);

}  // namespace usp
