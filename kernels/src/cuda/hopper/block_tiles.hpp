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

/// Tiles of query_rows rows, whose streamed tiles have `keys` rows. Keys follow in the order of the list.
[[nodiscard]] TileTable<KeySegment> query_tiles(const SliceList& slices, i64 q_rows, int keys);

/// Gradient rows of a block; where they are overwritten, all of them are written.
struct GradRows {
  i64 count = 0;
  bool overwrite = false;
};

/// Tiles of `size` keys and steps: those that see something, and of blocks that are overwritten all. Tiles
/// that see the same queries begin at different ones.
[[nodiscard]] TileTable<QuerySegment> key_tiles(const SliceList& slices, const std::vector<GradRows>& rows,
                                                const KeyTile& size);

}  // namespace usp::kernels::hopper
