// SPDX-License-Identifier: Apache-2.0
#include "parts.hpp"

namespace usp {
namespace {

void stages(const Mesh& mesh, std::vector<Stage>& out) {
  const int ring = mesh.ring();
  out.push_back(own_row());
  for (int k = 1; k < ring; ++k) out.push_back(block(k, ring_slot(k), k - 1));
  for (int k = 0; k + 1 < ring; ++k) out[static_cast<std::size_t>(k)].partial_travels = true;
}

std::string summary(const Mesh&) {
  return "ring: in unit d a rank attends to the keys of the row d behind it, received from its neighbour, "
         "which attended to them in the unit before";
}

/// On, back, and home.
i64 displacements(const Mesh&) {
  return 3;
}

}  // namespace

const MethodTraits ring_traits = {.word = "ring",
                                  .partials_travel = true,
                                  .problem = outer_ring_problem,
                                  .stages = stages,
                                  .displacements = displacements,
                                  .summary = summary};

}  // namespace usp
