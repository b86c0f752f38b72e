// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/compact.hpp"
#include "usp/schedule/kernel_traits.hpp"
#include "usp/schedule/operation.hpp"
#include "usp/schedule/slice.hpp"
#include "usp/schedule/types.hpp"

#include <array>
#include <cstdint>
#include <vector>

/// The explicit form of a schedule: one rank, one pass, plain data. The runtime executes this and nothing
/// else.
namespace usp::schedule {

/// A range of entries in one of RankSchedule's pools.
struct ListRef {
  std::int32_t begin = 0;
  std::int32_t count = 0;
};

using BufferId = std::int32_t;

/// The memory of a rank that its peers copy from and into.
enum class PeerReach : std::uint8_t {
  all,        ///< the caller's tensors too: ranks share an address space, or messages carry the bytes
  workspace,  ///< what lives inside the pass only
};

/// One region of memory with a life: [batch][row][head][width], rows and heads as stated. A name that is
/// bound again is a new buffer. `first` is -1 for what exists before the pass, `last` is the number of ticks
/// for what outlives it.
struct Buffer {
  BufferName name;
  DType type = DType::bf16;
  Fill fill = Fill::nan;
  Range heads;
  i64 rows = 0;
  i64 width = 0;
  std::int32_t first = 0;
  std::int32_t last = 0;
  ListRef pieces;  ///< RankSchedule::pieces: which tokens the rows hold

  /// Lives only inside the pass: part of the workspace.
  [[nodiscard]] bool internal(int ticks) const { return first >= 0 && last < ticks; }
};

/// Rows [row, row + slots.size()) of a buffer hold the slots `slots` of ring row `ring_row` (ascending
/// tokens).
struct Piece {
  std::int32_t ring_row = 0;
  Range slots;
  i64 row = 0;
};

/// A strided region: rows x heads of one buffer.
struct BufferRegion {
  BufferId buffer = 0;
  Range rows;
  Range heads;
};

/// A message of this rank: the regions in the order in which both ends list them. `move` is the index of the
/// compact move, the same on both ends. Sends post at `start`; arrivals are applied at the end of `due`, in
/// the listed order.
struct Transfer {
  std::int32_t peer = 0;
  bool send = false;
  WriteMode write_mode = WriteMode::overwrite;
  DType wire = DType::bf16;
  std::int32_t move = 0;
  std::int32_t start = 0;
  std::int32_t due = 0;
  ListRef regions;
  i64 bytes = 0;  ///< 0 when peer is the rank itself
  /// Where the payload lies packed, regions in order: in another type than the regions', or before it is
  /// added to them.
  BufferId stage = -1;
  /// PeerReach::workspace: the sender copies into the receiver's workspace; otherwise the receiver copies out
  /// of the sender's. The same on both ends.
  bool push = false;
  /// A step of the receiver awaits it, if it attends to what arrives; the same on both ends. Those of a tick
  /// are listed by distance along the ring, in which the receiver's list has their blocks.
  bool gated = false;
  /// It may travel in the tick before its start, since which both ends have room for it; the same on both
  /// ends.
  bool early = false;
  std::int32_t follows =
      -1;  ///< of an early send: the step whose completion lets it leave; -1: its start does
};

/// One computation: the operation and its buffers, by tensor.
struct Step {
  const Operation* operation = nullptr;
  std::int32_t work = 0;                       ///< index of the compact computation, the same on all ranks
  std::array<BufferId, tensor_count> buffers;  ///< -1: not an operand, or not wanted by the plan
  Range query_heads, kv_heads;                 ///< kv_heads: with pairs
  Range key_rows, dk_rows;                     ///< with pairs: rows of k and v, of dk and dv, with its blocks
  ListRef slices;                              ///< with pairs; key rows count from those of the step
  bool overwrite = false;                      ///< with pairs: results hold nothing yet
  bool overwrite_dkv = false;                  ///< with pairs: dk and dv hold nothing yet
  bool joined = false;                         ///< one call computes it and the step before, in this order
  ListRef gates;        ///< RankSchedule::gates: receives of its tick that it awaits, beyond all else
  StepBackend backend;  ///< with pairs

  Step() { buffers.fill(-1); }
  [[nodiscard]] BufferId operator[](Tensor tensor) const { return buffers[static_cast<std::size_t>(tensor)]; }
  [[nodiscard]] bool is(const Operation& other) const { return operation == &other; }
  [[nodiscard]] bool overwrites_dkv() const { return overwrite || overwrite_dkv; }
};

/// A whole buffer of the workspace that is copied to where it outlives the pass: beside the steps, from those
/// of `tick` on to the end of the pass. PeerReach::workspace only, where no peer could have written there.
struct Keep {
  BufferId from = 0, to = 0;
  std::int32_t tick = 0;
};

/// What happens in one tick, in this order: buffers begin, sends and receives are posted, steps run, keeps
/// begin, arrivals are applied, sends that are due are awaited. Every receive is applied once: by the step
/// whose gate it is, or among the arrivals.
struct Tick {
  ListRef posts;  ///< RankSchedule::transfers that start here
  ListRef steps;
  ListRef arrivals;  ///< RankSchedule::arrivals: receives due here, but gates
};

struct RankSchedule {
  int rank = 0;
  Pass pass = Pass::forward;
  Backend backend;  ///< what the plan asks for; steps say what they use
  std::vector<Buffer> buffers;
  std::vector<Transfer> transfers;
  std::vector<Step> steps;
  std::vector<Tick> ticks;
  std::vector<std::int32_t> arrivals;  ///< indices of transfers
  std::vector<std::int32_t> gates;     ///< indices of transfers
  std::vector<Keep> keeps;             ///< by tick
  std::vector<BufferRegion> regions;
  std::vector<Piece> pieces;
  std::vector<Slice> slices;
};

}  // namespace usp::schedule
