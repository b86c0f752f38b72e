// SPDX-License-Identifier: Apache-2.0
#include "block_tiles.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace usp::kernels::hopper {
namespace {

/// A bundle pays off from this share of the keys on; a tile of fewer than 8 tokens never does.
constexpr double clearly_fewer = 0.95;
constexpr int most_bundle_log2 = 4;

/// Counts the tiles of `rows` rows that each tile meets.
template <class Segment>
void count_streamed_tiles(TileTable<Segment>& table, int rows) {
  for (TileEntry& tile : table.tiles)
    for (int i = tile.segment_begin; i < tile.segment_end; ++i) {
      const Segment& s = table.segments[static_cast<std::size_t>(i)];
      tile.streamed_tiles += (s.end - s.begin + rows - 1) / rows;
    }
}

[[nodiscard]] double streamed_tiles(const TileTable<KeySegment>& table) {
  i64 tiles = 0;
  for (const TileEntry& tile : table.tiles) tiles += tile.streamed_tiles;
  return static_cast<double>(tiles);
}

/// Where runs of rows begin and end, and all `rows` do.
[[nodiscard]] std::vector<i64> bounds_of(const std::vector<Range>& runs, i64 rows) {
  std::vector<i64> bounds{0, rows};
  for (const Range& run : runs)
    if (!run.empty()) bounds.push_back(run.begin), bounds.push_back(run.end);
  std::sort(bounds.begin(), bounds.end());
  bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
  return bounds;
}
/// Of the slices' queries.
[[nodiscard]] std::vector<i64> query_bounds(const SliceList& slices, i64 q_rows) {
  std::vector<Range> runs;
  for (i64 n = 0; n < slices.count; ++n)
    runs.push_back({slices.at[n].q_row, slices.at[n].q_row + slices.at[n].q_count});
  return bounds_of(runs, q_rows);
}
/// Of the gradient rows of the slices' keys, by block.
[[nodiscard]] std::vector<std::vector<i64>> key_bounds(const SliceList& slices,
                                                       const std::vector<GradRows>& rows) {
  std::vector<std::vector<Range>> runs(rows.size());
  for (i64 n = 0; n < slices.count; ++n)
    runs[static_cast<std::size_t>(slices.block_of(n))].push_back(
        {slices.at[n].dk_row, slices.at[n].dk_row + slices.at[n].k_count});
  std::vector<std::vector<i64>> bounds;
  for (std::size_t block = 0; block < rows.size(); ++block)
    bounds.push_back(bounds_of(runs[block], rows[block].count));
  return bounds;
}

/// Tiles of up to `tile_rows` rows, the first of which begins where a document begins that is not short.
[[nodiscard]] std::vector<Range> document_tiles(const std::vector<i64>& bounds, int tile_rows) {
  std::vector<Range> tiles;
  const i64 rows = bounds.back();
  auto document = bounds.begin();
  for (i64 row = 0; row < rows; row = tiles.back().end) {
    const i64 end = std::min(row + tile_rows, rows);
    const auto begins_here = [&] {
      return *document > row && document + 1 != bounds.end() && 2 * (document[1] - *document) >= tile_rows;
    };
    while (*document < end && !begins_here()) ++document;
    tiles.push_back({row, std::min(end, *document)});
  }
  return tiles;
}

/// A tile costs as much as so many of the tiles that it streams beside those.
constexpr double own_cost = 0.3;

[[nodiscard]] double cost_of(const TileTable<KeySegment>& table) {
  return streamed_tiles(table) + own_cost * table.busy;
}

/// Of as many heads as may share a tile: they read one KV head, and every bundle is whole.
[[nodiscard]] int largest_bundle_log2(const QueryHeads& heads) {
  const i64 common = std::gcd(std::gcd(i64{heads.group}, heads.heads.begin), heads.heads.size());
  int log2 = 0;
  while (log2 < most_bundle_log2 && common % (i64{2} << log2) == 0) ++log2;
  return log2;
}

[[nodiscard]] int steps_of(const QuerySegment& s, int step_rows) {
  return (s.end - s.begin + step_rows - 1) / step_rows;
}

/// Additions to one row of dQ at one time wait for each other: a segment that reaches over a tile's own rows
/// is cut there, and its first part comes last. A tile's own rows, from `row` on, count over all blocks.
void append_staggered(std::vector<QuerySegment>& segments, QuerySegment s, i64 row, int step_rows) {
  QuerySegment before = s;
  const i64 step = std::max<i64>(row - s.begin, 0) / step_rows % steps_of(s, step_rows);
  s.begin = before.end = s.begin + static_cast<int>(step) * step_rows;
  segments.push_back(s);
  if (before.begin < before.end) segments.push_back(before);
}

/// Tiles that stay with one head for a segment of their own length soon work on different heads, whose rows
/// do not fit L2 together. Heads take turns at spans of so many rows, from the last one on: there tiles of
/// one document keep step. Within a span they begin at different rows.
constexpr int span_rows = 4096;
void append_spans(std::vector<QuerySegment>& segments, const QuerySegment& s, i64 row, const KeyTile& size) {
  QuerySegment span = s;
  for (span.end = s.end; span.end > s.begin; span.end = span.begin) {
    const int bound = (span.end - 1) / span_rows * span_rows;
    const int steps = bound <= s.begin ? 0 : (bound - s.begin + size.step - 1) / size.step;
    span.begin = s.begin + steps * size.step;
    if (span.begin >= span.end) span.begin -= size.step;
    append_staggered(segments, span, span.begin + row / size.keys * size.step, size.step);
  }
}

/// Orders the segments of each tile.
[[nodiscard]] TileTable<QuerySegment> ordered(TileTable<QuerySegment> table,
                                              const std::vector<GradRows>& rows, const KeyTile& size,
                                              int group) {
  std::vector<i64> begins;
  i64 begin = 0;
  for (const GradRows& block : rows) begins.push_back(begin), begin += block.count;
  std::vector<QuerySegment> segments;
  for (TileEntry& tile : table.tiles) {
    const auto first = static_cast<int>(segments.size());
    const i64 row = begins[static_cast<std::size_t>(tile.block)] + tile.row;
    for (int i = tile.segment_begin; i < tile.segment_end; ++i) {
      const QuerySegment& s = table.segments[static_cast<std::size_t>(i)];
      if (group > 1)
        append_spans(segments, s, row, size);
      else
        append_staggered(segments, s, row, size.step);
    }
    tile.segment_begin = first, tile.segment_end = static_cast<int>(segments.size());
  }
  table.segments = std::move(segments);
  return table;
}

/// A tile of keys costs as much as so many of its steps beside those.
constexpr i64 own_steps = 1;

[[nodiscard]] i64 cost_of(const TileTable<QuerySegment>& table) {
  i64 cost = own_steps * table.busy;
  for (const TileEntry& tile : table.tiles) cost += tile.streamed_tiles;
  return cost;
}

}  // namespace

QueryTiles query_tiles(const SliceList& slices, i64 q_rows, const QueryHeads& heads, int keys) {
  const std::vector<i64> bounds = query_bounds(slices, q_rows);
  const auto of_rows = [&](const std::vector<Range>& tiles) {
    TileTable<KeySegment> table = tiles_of_queries(slices, tiles);
    count_streamed_tiles(table, keys);
    return table;
  };
  const auto of_bundle = [&](int log2) {
    const int tokens = query_rows >> log2;
    TileTable<KeySegment> even = of_rows(even_tiles(q_rows, tokens));
    if (bounds.size() <= 2) return QueryTiles{std::move(even), log2};
    TileTable<KeySegment> documents = of_rows(document_tiles(bounds, tokens));
    return QueryTiles{cost_of(documents) < cost_of(even) ? std::move(documents) : std::move(even), log2};
  };
  QueryTiles alone = of_bundle(0);
  const int log2 = largest_bundle_log2(heads);
  if (log2 == 0) return alone;
  QueryTiles bundled = of_bundle(log2);
  const bool fewer =
      streamed_tiles(bundled.table) < clearly_fewer * streamed_tiles(alone.table) * (i64{1} << log2);
  return fewer ? bundled : alone;
}

TileTable<QuerySegment> key_tiles(const SliceList& slices, const std::vector<GradRows>& rows,
                                  const KeyTile& size, int group) {
  std::vector<std::vector<Range>> even, documents;
  for (const GradRows& block : rows) even.push_back(even_tiles(block.count, size.keys));
  for (const std::vector<i64>& bounds : key_bounds(slices, rows))
    documents.push_back(document_tiles(bounds, size.keys));
  const auto of_tiles = [&](const std::vector<std::vector<Range>>& tiles) {
    TileTable<QuerySegment> table = ordered(tiles_of_keys(slices, tiles, size.keys), rows, size, group);
    const auto unwritten = [&](const TileEntry& tile) {
      return !rows[static_cast<std::size_t>(tile.block)].overwrite;
    };
    const auto idle = table.tiles.begin() + table.busy;
    table.tiles.erase(std::remove_if(idle, table.tiles.end(), unwritten), table.tiles.end());
    count_streamed_tiles(table, size.step);
    return table;
  };
  TileTable<QuerySegment> table = of_tiles(even);
  if (documents == even) return table;
  TileTable<QuerySegment> by_document = of_tiles(documents);
  return cost_of(by_document) < cost_of(table) ? by_document : table;
}

ClaimRuns order_by_row(TileTable<QuerySegment>& table) {
  const auto begin = table.tiles.begin();
  i64 work = 0, light = 0;
  for (auto tile = begin; tile != begin + table.busy; ++tile) work += tile->streamed_tiles;
  auto end = begin + table.busy;
  while (end != begin && light_share * (light + end[-1].streamed_tiles) <= work)
    light += (--end)->streamed_tiles;
  const auto slice_of = [&](const TileEntry& tile) {
    return table.segments[static_cast<std::size_t>(tile.segment_begin)].slice;
  };
  std::unordered_map<int, int> heaviest;  // tile, by slice
  for (auto tile = begin; tile != begin + table.busy; ++tile) {
    int& most = heaviest[slice_of(*tile)];
    most = std::max(most, tile->streamed_tiles);
  }
  const auto place_of = [&](const TileEntry& tile) {
    return std::tuple(tile.block, -heaviest[slice_of(tile)], tile.row);
  };
  std::sort(begin, end, [&](const TileEntry& a, const TileEntry& b) { return place_of(a) < place_of(b); });
  return one_run(table);
}

ClaimRuns order_by_block(TileTable<QuerySegment>& table) {
  const auto begin = table.tiles.begin(), end = table.tiles.end();
  const int heaviest = table.busy == 0 ? 0 : table.tiles.front().streamed_tiles;
  const auto run_of = [&](const TileEntry& tile) {
    return tile.block == 0 && 2 * tile.streamed_tiles <= heaviest ? max_blocks : tile.block;
  };
  std::stable_sort(begin, end, [&](const TileEntry& a, const TileEntry& b) { return run_of(a) < run_of(b); });
  std::vector<int> ends;
  for (auto tile = begin; tile != end; ++tile)
    if (tile + 1 == end || run_of(tile[0]) != run_of(tile[1]))
      ends.push_back(static_cast<int>(tile + 1 - begin));
  if (ends.empty()) ends.push_back(0);
  return {ends, ends};
}

}  // namespace usp::kernels::hopper
