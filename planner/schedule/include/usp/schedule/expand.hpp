// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/generate.hpp"
#include "usp/schedule/geometry.hpp"
#include "usp/schedule/rank_schedule.hpp"

#include <cstdint>
#include <vector>

namespace usp::schedule {

/// The type of a tensor at a place: inputs and outputs in the input type, whatever is summed in the
/// accumulator type.
[[nodiscard]] DType buffer_type(const AttentionPlan& plan, bool shared_kv, BufferName name);
[[nodiscard]] DType wire_type(const AttentionPlan& plan, Wire wire);
/// Elements of one row and head of a tensor.
[[nodiscard]] i64 width_of(const AttentionShape& shape, Tensor tensor);
/// Bytes that one token and head of a move weigh on the wire, for all batch rows and both tensors.
[[nodiscard]] i64 wire_bytes_per_row_head(const AttentionPlan& plan, const TransferOp& move);

/// One rank's explicit form of one pass: pure and local. Every rank derives its own; sends and receives of
/// all ranks match by (move, source, target). With PeerReach::workspace, the same on all ranks, one end of
/// every message is in the workspace: what peers exchange and backward reads lands there, and is kept by a
/// copy (RankSchedule::keeps).
[[nodiscard]] RankSchedule expand(const TokenMap& geometry, const CompactSchedule& compact, int rank,
                                  Pass pass, PeerReach reach = PeerReach::all);

/// Bytes of one buffer.
[[nodiscard]] i64 bytes_of(const Buffer& buffer, i64 batch);

/// Where each internal buffer lies in one workspace: lives that overlap never share bytes.
struct Workspace {
  std::vector<i64> offset;  ///< per buffer; -1: lives outside the pass, of another part, or untouched
  i64 bytes = 0;
};
/// Which internal buffers.
enum class WorkspacePart : std::uint8_t {
  all,
  reached,  ///< those that peers copy from or into: an end of a message that offers its regions
  own,      ///< the others
};
/// Packs greedily, greatest first; offsets are multiples of 256 bytes, the end is that of the last buffer.
[[nodiscard]] Workspace pack_workspace(const RankSchedule& schedule, i64 batch,
                                       WorkspacePart part = WorkspacePart::all);

}  // namespace usp::schedule
