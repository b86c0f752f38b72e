// SPDX-License-Identifier: Apache-2.0
#include "block_tiles.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace usp::kernels::hopper {
namespace {

/// Counts the tiles of `rows` rows that each tile meets.
template <class Segment>
void count_streamed_tiles(TileTable<Segment>& table, int rows) {
  for (TileEntry& tile : table.tiles)
    for (int i = tile.segment_begin; i < tile.segment_end; ++i) {
      const Segment& s = table.segments[static_cast<std::size_t>(i)];
      tile.streamed_tiles += (s.end - s.begin + rows - 1) / rows;
    }
}

[[nodiscard]] int steps_of(const QuerySegment& s, int step_rows) {
  return (s.end - s.begin + step_rows - 1) / step_rows;
}

/// Additions to one row of dQ at one time wait for each other: a segment that reaches over a tile's own rows
/// is cut there, and its first part comes last. A tile's own rows count over all blocks.
[[nodiscard]] TileTable<QuerySegment> staggered(TileTable<QuerySegment> table,
                                                const std::vector<GradRows>& rows, int step_rows) {
  std::vector<i64> begins;
  i64 begin = 0;
  for (const GradRows& block : rows) begins.push_back(begin), begin += block.count;
  std::vector<QuerySegment> segments;
  for (TileEntry& tile : table.tiles) {
    const auto first = static_cast<int>(segments.size());
    const i64 row = begins[static_cast<std::size_t>(tile.block)] + tile.row;
    for (int i = tile.segment_begin; i < tile.segment_end; ++i) {
      QuerySegment s = table.segments[static_cast<std::size_t>(i)], before = s;
      const i64 step = std::max<i64>(row - s.begin, 0) / step_rows % steps_of(s, step_rows);
      s.begin = before.end = s.begin + static_cast<int>(step) * step_rows;
      segments.push_back(s);
      if (before.begin < before.end) segments.push_back(before);
    }
    tile.segment_begin = first, tile.segment_end = static_cast<int>(segments.size());
  }
  table.segments = std::move(segments);
  return table;
}

}  // namespace

TileTable<KeySegment> query_tiles(const SliceList& slices, i64 q_rows, int keys) {
  TileTable<KeySegment> table = tiles_of_queries(slices, q_rows, query_rows);
  count_streamed_tiles(table, keys);
  return table;
}

TileTable<QuerySegment> key_tiles(const SliceList& slices, const std::vector<GradRows>& rows,
                                  const KeyTile& size) {
  std::vector<i64> counts;
  for (const GradRows& block : rows) counts.push_back(block.count);
  TileTable<QuerySegment> table = staggered(tiles_of_keys(slices, counts, size.keys), rows, size.step);
  const auto unwritten = [&](const TileEntry& tile) {
    return !rows[static_cast<std::size_t>(tile.block)].overwrite;
  };
  const auto idle = table.tiles.begin() + table.busy;
  table.tiles.erase(std::remove_if(idle, table.tiles.end(), unwritten), table.tiles.end());
  count_streamed_tiles(table, size.step);
  return table;
}

}  // namespace usp::kernels::hopper
