// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pass_runner.hpp"

#include "usp/comm/data_plane.hpp"
#include "usp/kernels/memory.hpp"
#include "usp/runtime/executor.hpp"
#include "usp/runtime/prepared.hpp"

#include <memory>

namespace usp {

/// Places the buffers that have an offset from `base`.
void place_packed(const Prepared& prepared, Pass pass, PassRunner& runner, std::byte* base,
                  i64 (Prepared::*offset_of)(Pass, schedule::BufferId) const);

/// Memory that the calls of a rank use in turn: what peers reach, which is the data plane's where they reach the
/// workspace alone, the rest of the workspace, and sums of gradients.
class CallWorkspace {
 public:
  CallWorkspace(comm::DataPlane& data_plane, kernels::Memory& memory);

  /// Whether peers reach the workspace alone.
  [[nodiscard]] bool has_peer_arena() const { return reached_ != nullptr; }
  /// Room for the workspace of a call. Collective where the call is new to all ranks and peers have an arena.
  void reserve(const Prepared& prepared, bool forward_only, bool is_new);
  /// Of the greatest calls so far.
  [[nodiscard]] i64 bytes() const;

  void place_reached(const Prepared& prepared, Pass pass, PassRunner& runner) const;
  void place(const Prepared& prepared, Pass pass, PassRunner& runner) const;
  /// A gradient lands in the caller's tensor where that has the type of its sum.
  void place_gradients(const Prepared& prepared, PassRunner& runner, const AttentionGradients& to);
  /// Rounds the others.
  void finish_gradients(const Prepared& prepared, PassRunner& runner, const AttentionGradients& to) const;

  /// Fills a pass's workspace with a pattern, and finds the bytes up to the last ones that are others.
  void poison(const Prepared& prepared, Pass pass);
  [[nodiscard]] i64 touched_bytes(const Prepared& prepared, Pass pass);

 private:
  kernels::Memory& memory_;
  kernels::Arena* const reached_;  ///< null: peers reach all memory
  const std::unique_ptr<kernels::Arena> own_, sums_;
};

}  // namespace usp
