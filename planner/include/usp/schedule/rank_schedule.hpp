// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/compact.hpp"
#include "usp/schedule/kernel_traits.hpp"
#include "usp/schedule/slice.hpp"
#include "usp/schedule/types.hpp"

#include <cstdint>
#include <variant>
#include <vector>

/// The explicit form of a schedule: one rank, one pass, plain data. The runtime executes this and nothing
/// else.
namespace usp {

/// A range of entries in one of RankSchedule's pools.
struct ListRef {
  std::int32_t begin = 0;
  std::int32_t count = 0;
};

using BufferId = std::int32_t;

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

/// A strided box: rows x heads of one buffer.
struct Box {
  BufferId buffer = 0;
  Range rows;
  Range heads;
};

/// A message of this rank: the boxes in the order in which both ends list them. `move` is the index of the
/// compact move, the same on both ends. Sends post at `start`; arrivals are applied at the end of `due`, in
/// the listed order.
struct Transfer {
  std::int32_t peer = 0;
  bool send = false;
  Apply apply = Apply::copy;
  DType wire = DType::bf16;
  std::int32_t move = 0;
  std::int32_t start = 0;
  std::int32_t due = 0;
  ListRef boxes;
  i64 bytes = 0;  ///< 0 when peer is the rank itself
  BufferId stage =
      -1;  ///< receives that add: where the arrival lies until it is added (boxes in order, packed)
};

/// Query rows of q against key rows of k and v, merged into the carried (o, lse).
struct Attend {
  BufferId q = 0, k = 0, v = 0, o = 0, lse = 0;
  Range query_heads, kv_heads;
  ListRef slices;
  bool fresh = false;  ///< o and lse hold nothing yet
  StepBackend backend;
};

/// delta = rowsum(dO * O); with a sink also its gradient.
struct DeltaRows {
  BufferId d_o = 0, o = 0, lse = 0, delta = 0;
  Range query_heads;
};

/// Adds the gradients of one block of pairs into dq, dk, dv, from the final lse and delta; delta is -1 where
/// the backend takes it from o.
struct AttendGrad {
  BufferId q = 0, k = 0, v = 0, d_o = 0, lse = 0, delta = 0, dq = 0, dk = 0, dv = 0;
  Range query_heads, kv_heads;
  ListRef slices;
  bool fresh = false;  ///< dq, dk and dv hold nothing yet, and get nothing else
  BufferId o = -1;     ///< for backends that read it beside delta
  StepBackend backend;
};

using Step = std::variant<Attend, DeltaRows, AttendGrad>;

/// What happens in one tick, in this order: buffers begin, sends and receives are posted, steps run, arrivals
/// are applied, sends that are due are awaited.
struct Tick {
  ListRef posts;  ///< RankSchedule::transfers that start here
  ListRef steps;
  ListRef arrivals;  ///< RankSchedule::arrivals: receives due here
};

struct RankSchedule {
  int rank = 0;
  Pass pass = Pass::forward;
  Backend backend = Backend::cpu;  ///< what the plan asks for; steps say what they use
  std::vector<Buffer> buffers;
  std::vector<Transfer> transfers;
  std::vector<Step> steps;
  std::vector<Tick> ticks;
  std::vector<std::int32_t> arrivals;  ///< indices of transfers
  std::vector<Box> boxes;
  std::vector<Piece> pieces;
  std::vector<Slice> slices;
};

}  // namespace usp
