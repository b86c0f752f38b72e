// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/heads.hpp"
#include "usp/schedule/mesh.hpp"
#include "usp/schedule/operation.hpp"
#include "usp/schedule/types.hpp"

#include <vector>

/// The compact form of a schedule: what a plan means, symmetric over ranks. Its size grows with the ring,
/// never with the number of ranks. Pricing reads this form only; `expand` makes one rank's explicit form from
/// it.
namespace usp::schedule {

enum class Side : std::uint8_t { q, k };                      ///< the query tokens or the key tokens
enum class Endpoint : std::uint8_t { none, source, target };  ///< one end of a transfer
enum class Block : std::uint8_t { row, home };  ///< a whole ring row, or one rank's own part of it
enum class TokenFilter : std::uint8_t {
  all,
  partitioned,
  replicated
};  ///< all tokens, or without / only those every rank holds

/// Names tokens relative to the two ends of a transfer. `need` filters keep key tokens that some of the rows
/// `offsets` away from the block can see; they act only in a pruned plan.
struct TokenSelect {
  Block block = Block::row;
  Side of = Side::q;
  Endpoint at = Endpoint::target;  ///< whose block it is
  TokenFilter copies = TokenFilter::all;
  Endpoint needed_by = Endpoint::none;  ///< only what this end's row can see
  RingShift shift;                      ///< the block lies this far from that end's row
  RingOffsets needed;                   ///< seen by any of these
  RingOffsets also;                     ///< and by any of these
  RingOffsets not_needed;               ///< but by none of these
};

enum class HeadKind : std::uint8_t { query, kv, kv_new, kv_last, all_query, all_kv };

struct HeadSelect {
  HeadKind kind = HeadKind::query;
  Endpoint at = Endpoint::target;
  std::int16_t chunk = -1;  ///< -1: every chunk
};

enum class Fill : std::uint8_t { nan, zero };

/// At the start of `tick` the buffer begins to hold this region.
struct BufferBinding {
  BufferName buffer;
  Fill fill = Fill::nan;
  bool with_replicated = false;  ///< a home buffer: replicated tokens precede the rank's own
  std::int32_t tick = 0;
  TokenSelect tokens;
  RingOffsets
      blocks;  ///< one block per offset, the block lying `back` from the row; a single block when empty
  HeadSelect heads;
  /// Blocks follow one another in the order of their offsets, each whole, for steps that attend to one each;
  /// otherwise their tokens ascend.
  bool apart = false;
};

enum class TransferName : std::uint8_t {
  qkv_all_to_all,
  out_all_to_all,
  kv_exchange,
  dout_all_to_all,
  dqkv_all_to_all,
  dkv_ring,
  dkv_return
};
enum class Peers : std::uint8_t { self, shift, every_ulysses, every_ring, all_ranks };
enum class Wire : std::uint8_t { io, accumulator };

/// The same tokens of one or two tensors fly from `start` to `due`. After an add the source is dead: a
/// partial is moved, not copied, so that it is summed once.
struct TransferOp {
  TransferName name = TransferName::qkv_all_to_all;
  Peers peers = Peers::self;
  WriteMode write_mode = WriteMode::overwrite;
  Wire wire = Wire::io;
  std::uint8_t pairs = 1;
  BufferName from[2];
  BufferName to[2];
  RingShift shift;
  std::int32_t start = 0;
  std::int32_t due = 0;
  TokenSelect tokens;
  HeadSelect heads;
  bool gated = false;  ///< the step of its tick that reads it awaits it (ComputeOp::list)
  /// Each message may leave once the step of the tick before that computes its block is complete, while the
  /// list goes on (ComputeOp::list).
  bool early = false;
};

/// A computation inside one tick: the rank's query rows against the key blocks at `offsets`. `overwrite`: its
/// results hold nothing yet. Where a pass has one unit they get nothing else, and are rounded once.
/// `overwrite_dkv`: dk and dv hold nothing yet, whatever dq holds.
///
/// `list`: neighbours in a tick that have the same, above 0, and agree in operation, heads and backend are
/// computed by one call for a list of blocks, in this order. Each awaits the gated transfers of its tick that
/// bring its block. Lists of a tick count from 1, and each goes on with the results of the one before.
struct ComputeOp {
  const Operation* operation = &operations::attend;
  BufferSlot q = BufferSlot::home;
  BufferSlot kv = BufferSlot::home;
  BufferSlot d_o = BufferSlot::home;
  BufferSlot o = BufferSlot::row;
  BufferSlot dq = BufferSlot::row;
  BufferSlot dkv = BufferSlot::row;
  bool overwrite = false;
  bool overwrite_dkv = false;
  HeadPart part = HeadPart::all;
  std::int16_t list = 0;
  std::int16_t chunk = 0;
  std::int32_t tick = 0;
  RingOffsets offsets;

  [[nodiscard]] bool overwrites_dkv() const { return overwrite || overwrite_dkv; }
};

/// One pass; each list is in ascending order of tick (transfers: of start).
struct CompactPass {
  int ticks = 0;
  std::vector<BufferBinding> binds;
  std::vector<TransferOp> transfers;
  std::vector<ComputeOp> work;
  void clear() {
    ticks = 0;
    binds.clear();
    transfers.clear();
    work.clear();
  }
};

}  // namespace usp::schedule
