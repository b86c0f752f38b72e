// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/data_plane.hpp"

#include <memory>
#include <vector>

namespace usp::comm {

/// Where transfers with one peer go: a data plane, and the peer's rank in it.
struct Route {
  DataPlane* via = nullptr;  ///< null: there is no way
  int peer = 0;
};

/// One data plane out of several, each of which reaches some of the peers: copy engines along one axis of a
/// mesh and NCCL along the other, say. `planes` are connected in their order, which is the same on all ranks;
/// `routes[p]` is the way to rank p of `control`, through one of them. All outlive this.
[[nodiscard]] std::unique_ptr<DataPlane> make_routed_data_plane(Communicator& control,
                                                                std::vector<DataPlane*> planes,
                                                                std::vector<Route> routes);

}  // namespace usp::comm
