// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../tiles/work_list.hpp"
#include "tile_rows.hpp"

#include "usp/kernels/attention_args.hpp"

#include <vector>

/// Tables of tiles of a list of blocks, made on the host.
namespace usp::kernels::hopper {

using namespace tiles;

/// The slices of all blocks, one block after the other.
class BlockSlices {
 public:
  template <class Args>
  explicit BlockSlices(const BlockList<Args>& list) {
    for (const Args& a : list) {
      slices_.insert(slices_.end(), a.scope.slices, a.scope.slices + a.scope.slice_count);
      blocks_.resize(slices_.size(), static_cast<int>(&a - list.blocks));
    }
  }
  [[nodiscard]] SliceList list() const {
    return {slices_.data(), static_cast<i64>(slices_.size()), blocks_.data()};
  }

 private:
  std::vector<schedule::Slice> slices_;
  std::vector<int> blocks_;
};

/// Tiles of up to query_rows rows, each a token of one of the heads of a bundle.
struct QueryTiles {
  TileTable<KeySegment> table;  ///< rows are tokens
  int bundle_log2 = 0;
};
/// Query heads of a call, `group` per KV head.
struct QueryHeads {
  Range heads;
  int group = 1;
};
/// Streamed tiles have `keys` rows and follow in the order of the list. Tiles lie on an even grid, or begin
/// anew with each document that is not short, whichever streams fewer keys. Heads of one KV head are bundled,
/// in a power of two, where tiles of fewer tokens stream clearly fewer keys: few tokens, short documents,
/// windows.
[[nodiscard]] QueryTiles query_tiles(const SliceList& slices, i64 q_rows, const QueryHeads& heads, int keys);

/// Gradient rows of a block; where they are overwritten, all of them are written.
struct GradRows {
  i64 count = 0;
  bool overwrite = false;
};

/// Tiles of up to `size` keys and steps: those that see something, and of blocks that are overwritten all.
/// They lie on an even grid of each block, or begin anew with each document that is not short, whichever is
/// less work. Tiles that see the same queries begin at different ones; `group`: query heads of a KV head,
/// which a tile takes in turns.
[[nodiscard]] TileTable<QuerySegment> key_tiles(const SliceList& slices, const std::vector<GradRows>& rows,
                                                const KeyTile& size, int group = 1);

/// Runs in which tiles are claimed, as their ends: of the tiles that see something, then of all.
struct ClaimRuns {
  std::vector<int> busy, all;
  [[nodiscard]] const std::vector<int>& of(bool all_tiles) const { return all_tiles ? all : busy; }
};
/// In the order of the table.
template <class Segment>
[[nodiscard]] ClaimRuns one_run(const TileTable<Segment>& table) {
  return {{table.busy}, {static_cast<int>(table.tiles.size())}};
}
/// Orders tiles by block and row, documents with heavy tiles first: near tiles read the same queries while
/// those are in L2. The lightest tiles, one part of light_share of the work, stay behind them by falling
/// work, to end the launch evenly.
[[nodiscard]] ClaimRuns order_by_row(TileTable<QuerySegment>& table);
inline constexpr i64 light_share = 8;

/// Orders tiles of blocks that are arriving: a run for each block, in the order of the list, so that what has
/// arrived is worked on first, and a block is complete before later ones arrive. Light tiles of the first
/// block come last, to end the launch evenly. All tiles are claimed, those that see nothing behind the others
/// of their block. With few claims of each multiprocessor the end is too uneven for it.
[[nodiscard]] ClaimRuns order_by_block(TileTable<QuerySegment>& table);
/// Claims of each multiprocessor from which on it pays. Measured on an H200 with two of them and all gates
/// open: 9% slower than in the order of falling work.
inline constexpr i64 ordered_claims = 4;

}  // namespace usp::kernels::hopper
