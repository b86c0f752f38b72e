// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/attention_cost_model.hpp"
#include "usp/planner/pricing.hpp"
#include "usp/schedule/expand.hpp"

#include <algorithm>

namespace usp {

/// What the memory of a rank carries at the ends of a transfer, per byte on the wire: a sender packs rows
/// that have another type than the wire, a receiver adds what is summed, or converts; what stays on the rank
/// is copied. Of buffers as the executor has them: those of a pass of several units are sums of twice the
/// width.
struct Staging {
  double packed = 0, unpacked = 0, copied = 0;
  [[nodiscard]] bool any() const { return packed + unpacked + copied > 0; }
};

[[nodiscard]] inline Staging staging_of(const AttentionPlan& plan, bool shared_kv,
                                        const schedule::TransferOp& move, const ExecutionOptions& options,
                                        bool has_peers) {
  Staging staging;
  const bool exchange = move.peers != schedule::Peers::shift;
  // Packing kernels carry all of an exchange; results of one unit are rounded once, and land as they are.
  if (!options.merge_kernels || (options.pack_kernels && exchange && has_peers)) return staging;
  const bool io = move.wire == schedule::Wire::io;
  if (plan.mesh.ring() == 1 && io) return staging;
  const Tensor carried = move.from[0].tensor;
  if (!exchange && io && (carried == Tensor::k || carried == Tensor::v)) return staging;  // lands as it is
  const auto wire = static_cast<double>(bytes_of(schedule::wire_type(plan, move.wire)));
  const auto from = static_cast<double>(bytes_of(schedule::buffer_type(plan, shared_kv, move.from[0])));
  const auto to = static_cast<double>(bytes_of(schedule::buffer_type(plan, shared_kv, move.to[0])));
  const bool adds = move.write_mode == WriteMode::accumulate;
  if (from != wire) staging.packed = (from + wire) / wire;
  if (adds || to != wire) staging.unpacked = (wire + (adds ? 2 : 1) * to) / wire;
  // Sums begin with zeros.
  if (move.peers == schedule::Peers::every_ulysses) staging.copied = (from + (adds ? 3 : 1) * to) / wire;
  return staging;
}

/// Kernels before a transfer starts and after it is due.
struct StagingTimes {
  double before_s = 0, after_s = 0;
  [[nodiscard]] bool any() const { return before_s + after_s > 0; }
  friend bool operator==(const StagingTimes&, const StagingTimes&) = default;
};

/// A kernel for each tensor and peer.
/// @param bytes on the wire, per peer; @param own_bytes what stays on the rank would weigh there
[[nodiscard]] inline StagingTimes staging_times(const AttentionCostModel& kernel, const Staging& staging,
                                                const schedule::TransferOp& move, double bytes, int peers,
                                                double own_bytes) {
  const int kernels = move.pairs * std::max(1, peers);
  return {kernel.memory_bound(staging.packed * bytes * peers, kernels).seconds,
          kernel.memory_bound(staging.unpacked * bytes * peers, kernels).seconds +
              kernel.memory_bound(staging.copied * own_bytes, move.pairs).seconds};
}

}  // namespace usp
