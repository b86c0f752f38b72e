// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/estimate.hpp"
#include "usp/schedule/compact.hpp"

namespace usp {

/// Whether work is a remote block of a list: no rank waits for another before it, only for its arrival.
[[nodiscard]] inline bool is_remote_in_list(const schedule::ComputeOp& w) {
  return w.list > 0 && w.offsets.begin != 0;
}

/// How much of the gated transfers of its tick a computation awaits: they bring blocks in the order of the
/// lists, one after another.
[[nodiscard]] inline double share_awaited(const schedule::ComputeOp& w, const Mesh& mesh) {
  if (!is_remote_in_list(w)) return 0;
  return static_cast<double>(w.offsets.begin) / (mesh.ring() - 1);
}

/// How much of what goes home early leaves no sooner than a computation is done: its block's part and those
/// of later ones.
[[nodiscard]] inline double share_completed(const schedule::ComputeOp& w, const Mesh& mesh) {
  if (!is_remote_in_list(w)) return 0;
  return static_cast<double>(mesh.ring() - w.offsets.begin) / (mesh.ring() - 1);
}

/// One call for a list of blocks, as its tick is priced.
struct ListCall {
  int number = 0;      ///< ComputeOp::list
  double waves = 1;    ///< of tiles that each walk through all blocks, one wave after another
  Estimate continued;  ///< what it takes more as it goes on with the results of the call before
};

}  // namespace usp
