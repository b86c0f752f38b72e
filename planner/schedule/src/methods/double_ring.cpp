// SPDX-License-Identifier: Apache-2.0
#include "parts.hpp"

#include <fmt/format.h>

namespace usp {
namespace {

/// Laps of the inner ring, one per outer block. The first block of a lap comes from the outer ring and starts
/// one lap early; partials travel a lap, then go home while the next lap runs.
void stages(const Mesh& mesh, std::vector<Stage>& out) {
  if (mesh.ring_inner == 1) return ring_traits.stages(mesh, out);  // laps of one rank: the outer hops alone
  const int inner = mesh.ring_inner, ring = mesh.ring();
  for (int k = 0; k < ring; ++k) {
    const int lap = k / inner, step = k % inner;
    if (k == 0)
      out.push_back(own_row());
    else if (step == 0)
      out.push_back(block(k, lap % 2 == 0 ? BufferSlot::outer0 : BufferSlot::outer1, k - inner));
    else
      out.push_back(block(k, ring_slot(step), k - 1));
    Stage& stage = out.back();
    const bool ends_lap = step == inner - 1;
    stage.partial_travels = !ends_lap;
    stage.outer_partial = ends_lap;
    if (ends_lap && k + 1 < ring) stage.home_ticks = inner;
  }
}

std::optional<PlanProblem> problem(const AttentionPlan& plan) {
  if (plan.mesh.ring() == 1) return {};  // one row owns all tokens: every method is the same
  if (plan.mesh.ring_outer == 1)
    return PlanProblem{
        "mesh/ring_inner",
        fmt::format("is all of the ring of {}, which nothing cuts: give an inner ring that divides it, "
                    "or use method ring",
                    plan.mesh.ring())};
  if (plan.mesh.ring_inner > 1) return {};
  return PlanProblem{"mesh/ring_inner",
                     "is 1: a double ring whose inner ring has one rank is a ring; use method ring"};
}

std::string summary(const Mesh& mesh) {
  const std::string inner = std::to_string(mesh.ring_inner);
  return fmt::format(
      "double_ring {}x{}: blocks travel an inner ring of {}; the next outer block starts one inner lap early "
      "and has that lap to cross the slow links",
      mesh.ring_outer, inner, inner);
}

/// Those of the inner ring, and home from the end of every lap.
i64 displacements(const Mesh& mesh) {
  return 3 + mesh.ring_outer;
}

}  // namespace

const MethodTraits double_ring_traits = {.word = "double_ring",
                                         .two_level_ring = true,
                                         .partials_travel = true,
                                         .problem = problem,
                                         .stages = stages,
                                         .displacements = displacements,
                                         .summary = summary};

}  // namespace usp
