// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/communicator.hpp"

#include <memory>
#include <vector>

namespace usp::comm {

/// Where messages to one peer go: a communicator, and the peer's rank in it.
struct Route {
  Communicator* via = nullptr;  ///< null: there is no way
  int peer = 0;
};

/// One communicator out of several, each of which reaches some of the peers: copy engines along one axis of a
/// mesh and NCCL along the other, say. `routes[p]` is the way to rank p of `control`, which carries
/// everything but point-to-point payload. All outlive this. A group of it has the ways of its members.
/// Traffic is counted here, by the ranks of `control`.
[[nodiscard]] std::unique_ptr<Communicator> make_composite_communicator(Communicator& control,
                                                                        std::vector<Route> routes);

}  // namespace usp::comm
