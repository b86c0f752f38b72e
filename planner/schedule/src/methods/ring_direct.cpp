// SPDX-License-Identifier: Apache-2.0
#include "parts.hpp"

namespace usp {
namespace {

void stages(const Mesh& mesh, std::vector<Stage>& out) {
  out.push_back(own_row());
  for (int k = 1; k < mesh.ring(); ++k) {
    out.push_back(block(k, ring_slot(k), 0));
    out.back().fetched_with = k - 1;
  }
}

std::string summary(const Mesh&) {
  return "ring_direct: in unit d a rank attends to the keys of the row d behind it, sent by their owner "
         "straight to it; no block waits for a neighbour";
}

i64 displacements(const Mesh& mesh) {
  return mesh.ring();
}

}  // namespace

const MethodTraits ring_direct_traits = {.word = "ring_direct",
                                         .problem = outer_ring_problem,
                                         .stages = stages,
                                         .displacements = displacements,
                                         .summary = summary};

}  // namespace usp
