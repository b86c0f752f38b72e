// SPDX-License-Identifier: Apache-2.0
#include "parts.hpp"

namespace usp {
namespace {

void stages(const Mesh& mesh, std::vector<Stage>& out) {
  out.push_back(own_row());
  if (mesh.ring() == 1) return;
  Stage remote = block(1, BufferSlot::all, 0);
  remote.offsets = offsets(1, mesh.ring());
  out.push_back(remote);
}

std::string summary(const Mesh&) {
  return "all_gather_kv: the keys of all other rows come straight from their owners to memory that holds "
         "them "
         "all; fewest rounds, most memory";
}

/// Every rank sends to every other of its ring at once, which is routed as one exchange.
i64 displacements(const Mesh&) {
  return 0;
}

}  // namespace

const MethodTraits all_gather_kv_traits = {.word = "all_gather_kv",
                                           .joins_remote_blocks = true,
                                           .problem = outer_ring_problem,
                                           .stages = stages,
                                           .displacements = displacements,
                                           .summary = summary};

}  // namespace usp
