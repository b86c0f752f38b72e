// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "flag_group.hpp"

#include "usp/schedule/placement.hpp"
#include "usp/schedule/plan.hpp"
#include "usp/schedule/plan_inputs.hpp"
#include "usp/schedule/words.hpp"
#include "usp/topology/cluster.hpp"

#include <optional>

namespace usp::cli {

/// The flags of a mesh and of the schedule on it; an empty one is not decided.
struct MeshFlags {
  Constraints fixed;
  std::optional<int> ring_inner;
  bool prune = false;
};

/// Adds the group "Layout" of a verb that takes one layout: the degrees are required, other flags have
/// defaults.
void add_layout_flags(const Verb& verb, MeshFlags& flags);
/// Adds the group of a verb that searches layouts.
void add_constraint_flags(const Verb& verb, MeshFlags& flags);

/// Axes of the mesh that --sweep varies: a fixed degree has no effect on them.
struct SweptDegrees {
  bool ring = false, ulysses = false;
};

/// Throws UsageError for a flag without effect beside another.
void check_mesh(const MeshFlags& flags, bool forward_only, SweptDegrees swept = {});

/// Mesh, method, layout and so on of one call, whose band is set; an undecided field takes the default that
/// --help names.
void set_layout(const MeshFlags& flags, AttentionPlan& plan);
[[nodiscard]] Placement placement_of(const MeshFlags& flags);

/// How schedules are executed and priced.
struct ExecutionFlags {
  std::optional<Transport> transport;
  bool no_overlap = false;

  [[nodiscard]] ExecutionOptions options() const;
};
/// --transport carries data between GPUs: UsageError where the devices are none.
void check_transport(const ExecutionFlags& flags, const topology::Cluster& cluster);
void add_execution_flags(const Verb& verb, ExecutionFlags& flags, const char* group);

}  // namespace usp::cli
