// SPDX-License-Identifier: Apache-2.0
#include "block_tiles.hpp"
#include "block_trial.hpp"
#include "random_cases.hpp"
#include "slice_pairs.hpp"
#include "tile_rows.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

/// Tables of tiles of lists of blocks, which are made on the host, against the pairs of the slices.
namespace usp::kernels::hopper {
namespace {

using test::Draw;
using test::sees;

/// A case in even blocks, the first of which holds nothing.
struct Blocks {
  Blocks(const test::Case& problem, i64 count) : c(problem) {
    ranges = test::even_blocks(c.k_rows, count);
    ranges.insert(ranges.begin(), Range{0, 0});
    for (const Range& rows : ranges) {
      std::vector<schedule::Slice>& part = slices.emplace_back();
      for (const schedule::Slice& s : c.slices) part.push_back(test::part_of_slice(s, rows));
    }
    for (const std::vector<schedule::Slice>& part : slices) {
      AttendArgs& a = args.emplace_back();
      a.scope.slices = part.data(), a.scope.slice_count = static_cast<i64>(part.size());
    }
  }
  [[nodiscard]] BlockSlices all() const {
    return BlockSlices(AttendBlocks{args.data(), static_cast<i64>(args.size())});
  }

  test::Case c;
  std::vector<Range> ranges;
  std::vector<std::vector<schedule::Slice>> slices;
  std::vector<AttendArgs> args;
};

[[nodiscard]] std::vector<i64> pairs_by_block(const Blocks& blocks) {
  std::vector<i64> counts;
  for (const std::vector<schedule::Slice>& part : blocks.slices) counts.push_back(test::visible_pairs(part));
  return counts;
}

void check_queries(const Draw& draw, i64 count, int group) {
  const Blocks blocks(draw.problem, count);
  const BlockSlices slices = blocks.all();
  constexpr int keys = 80;
  const auto [table, bundle_log2] =
      query_tiles(slices.list(), blocks.c.q_rows, {{0, 2 * group}, group}, keys);
  const i64 tokens = query_rows >> bundle_log2;
  std::vector<i64> met(blocks.slices.size(), 0);
  i64 rows = 0;
  for (const TileEntry& tile : table.tiles) {
    ASSERT_LE(tile.row_end, std::min<i64>(tile.row + tokens, blocks.c.q_rows)) << draw.text();
    rows += tile.row_end - tile.row;
    int before = 0, streamed = 0;
    for (int n = tile.segment_begin; n < tile.segment_end; ++n) {
      const KeySegment& segment = table.segments[static_cast<std::size_t>(n)];
      ASSERT_GE(segment.block, before) << draw.text() << ": keys follow in the order of the list";
      ASSERT_EQ(segment.block, slices.list().block_of(segment.slice));
      before = segment.block, streamed += (segment.end - segment.begin + keys - 1) / keys;
      const schedule::Slice& s = slices.list().at[segment.slice];
      for (i64 row = tile.row; row < tile.row_end; ++row)
        for (i64 key = segment.begin; key < segment.end; ++key) {
          const bool seen = sees(s, row, key);
          met[static_cast<std::size_t>(segment.block)] += seen ? 1 : 0;
          ASSERT_TRUE(seen || key < segment.full_begin || key >= segment.full_end) << draw.text();
        }
    }
    EXPECT_EQ(tile.streamed_tiles, streamed);
  }
  EXPECT_EQ(rows, blocks.c.q_rows) << draw.text();
  EXPECT_EQ(met, pairs_by_block(blocks)) << draw.text();
}

void check_keys(const Draw& draw, i64 count, const KeyTile& size, int group) {
  const Blocks blocks(draw.problem, count);
  const BlockSlices slices = blocks.all();
  std::vector<GradRows> rows;
  for (std::size_t i = 0; i < blocks.ranges.size(); ++i) rows.push_back({blocks.c.grad_rows(), i % 2 == 1});
  const TileTable<QuerySegment> table = key_tiles(slices.list(), rows, size, group);
  std::vector<i64> met(rows.size(), 0), covered(rows.size(), 0);
  std::map<std::tuple<int, int>, int> places;
  for (const TileEntry& tile : table.tiles) {
    EXPECT_EQ(++places[std::tuple(tile.block, tile.row)], 1) << draw.text();
    ASSERT_LE(tile.row_end, std::min<i64>(tile.row + size.keys, blocks.c.grad_rows())) << draw.text();
    covered[static_cast<std::size_t>(tile.block)] += tile.row_end - tile.row;
    int streamed = 0;
    for (int n = tile.segment_begin; n < tile.segment_end; ++n) {
      const QuerySegment& segment = table.segments[static_cast<std::size_t>(n)];
      ASSERT_EQ(segment.block, tile.block) << draw.text();
      ASSERT_LT(segment.begin, segment.end) << draw.text();
      streamed += (segment.end - segment.begin + size.step - 1) / size.step;
      const schedule::Slice& s = slices.list().at[segment.slice];
      for (i64 row = segment.begin; row < segment.end; ++row)
        for (i64 gradient = tile.row; gradient < tile.row + size.keys; ++gradient) {
          const bool seen = sees(s, row, gradient + segment.shift);
          met[static_cast<std::size_t>(tile.block)] += seen && gradient < tile.row_end ? 1 : 0;
          ASSERT_TRUE(segment.masked != 0 || seen) << draw.text();
        }
    }
    EXPECT_EQ(tile.streamed_tiles, streamed);
    EXPECT_TRUE(streamed > 0 || rows[static_cast<std::size_t>(tile.block)].overwrite) << draw.text();
  }
  for (std::size_t i = 1; i < rows.size(); i += 2)
    EXPECT_EQ(covered[i], rows[i].count) << draw.text() << ": all rows are written";
  EXPECT_EQ(met, pairs_by_block(blocks)) << draw.text();
}

/// The order in which tiles of arriving blocks are claimed.
void check_runs(const Draw& draw, i64 count) {
  const Blocks blocks(draw.problem, count);
  const BlockSlices slices = blocks.all();
  const std::vector<GradRows> rows(blocks.ranges.size(), {blocks.c.grad_rows(), true});
  const TileTable<QuerySegment> before = key_tiles(slices.list(), rows, key_tile(128, 128));
  TileTable<QuerySegment> table = before;
  const ClaimRuns runs = order_by_block(table);
  const auto place = [](const TileEntry& t) {
    return std::tuple(t.block, t.row, t.segment_begin, t.segment_end, t.streamed_tiles);
  };
  std::vector<decltype(place(table.tiles.front()))> a, b;
  for (const TileEntry& tile : before.tiles) a.push_back(place(tile));
  for (const TileEntry& tile : table.tiles) b.push_back(place(tile));
  EXPECT_TRUE(std::is_permutation(a.begin(), a.end(), b.begin(), b.end())) << draw.text();

  ASSERT_LE(runs.busy.size(), static_cast<std::size_t>(max_blocks + 1));
  ASSERT_EQ(runs.busy, runs.all);
  ASSERT_EQ(runs.all.back(), static_cast<int>(table.tiles.size()));
  int at = 0, block = -1;
  for (const int end : runs.busy) {
    ASSERT_LE(at, end);
    for (int first = at; at < end; ++at) {
      const TileEntry& tile = table.tiles[static_cast<std::size_t>(at)];
      const TileEntry& above = table.tiles[static_cast<std::size_t>(at == first ? at : at - 1)];
      EXPECT_EQ(tile.block, above.block) << draw.text() << ": a run is of one block";
      EXPECT_LE(tile.streamed_tiles, above.streamed_tiles) << draw.text();
      if (at == first && !(tile.block == 0 && end == runs.all.back())) {
        EXPECT_GT(tile.block, block) << draw.text() << ": blocks follow in the order of the list";
        block = tile.block;
      }
    }
  }
}

TEST(HopperBlockTiles, ArrivingBlocksAreClaimedInTheOrderOfTheList) {
  for (const Draw& draw : test::contract_draws())
    for (const i64 count : {1, 3, 15}) check_runs(draw, count);
  // Half of a causal block is light: it ends the launch.
  const std::vector<schedule::Slice> slices{test::banded(512, 512, 0, unbounded), test::rectangle(512, 512)};
  const int block[] = {0, 1};
  TileTable<QuerySegment> table =
      key_tiles({slices.data(), 2, block}, std::vector<GradRows>(2, {512, true}), key_tile(128, 128));
  EXPECT_EQ(order_by_block(table).busy, (std::vector<int>{2, 6, 8}));
}

TEST(HopperBlockTiles, NearTilesFollowEachOtherAndTheLightestEndTheLaunch) {
  // Documents of 7, 1 and 8 tiles of keys: their last tiles are the lightest.
  std::vector<schedule::Slice> slices;
  i64 row = 0;
  for (const i64 tiles : {7, 1, 8}) {
    schedule::Slice s = test::banded(128 * tiles, 128 * tiles, 0, unbounded);
    s.q_row = s.k_row = s.dk_row = s.q_pos = s.k_pos = row;
    slices.push_back(s);
    row += 128 * tiles;
  }
  TileTable<QuerySegment> table = key_tiles({slices.data(), 3}, {{row, true}}, key_tile(128, 128));
  const ClaimRuns runs = order_by_row(table);
  EXPECT_EQ(runs.busy, std::vector<int>{16});
  std::vector<int> rows;
  for (const TileEntry& tile : table.tiles) rows.push_back(tile.row / 128);
  // An eighth of 7 * 8 / 2 + 1 + 8 * 9 / 2 tiles of queries: 3 + 2 + 1 + 1 + 1.
  EXPECT_EQ(rows, (std::vector<int>{8, 9, 10, 11, 12, 13, 0, 1, 2, 3, 4, 5, 14, 6, 7, 15}));
}

TEST(HopperBlockTiles, MeetEveryVisiblePairOnceInItsBlock) {
  std::vector<Draw> draws = test::contract_draws();
  for (std::uint64_t seed = 1; seed <= 20; ++seed) draws.push_back(test::random_draw(seed));
  for (const Draw& draw : draws)
    for (const i64 count : {1, 3, 15}) {
      for (const int group : {1, 4, 6}) check_queries(draw, count, group);
      for (const KeyTile& size : {key_tile(128, 128), key_tile(256, 256), backward_key_tile(64)})
        for (const int tile_group : {1, 4}) check_keys(draw, count, size, tile_group);
    }
}

TEST(HopperBlockTiles, HeadsThatShareKeysAreBundledWhereFewerKeysStream) {
  const auto bundle_of = [](const schedule::Slice& slice, const QueryHeads& heads) {
    return query_tiles({&slice, 1}, slice.q_row + slice.q_count, heads, 128).bundle_log2;
  };
  const schedule::Slice few = test::rectangle(20, 512);
  EXPECT_EQ(bundle_of(few, {{0, 8}, 8}), 3);
  EXPECT_EQ(bundle_of(few, {{0, 32}, 32}), 4) << "a tile holds 8 tokens at least";
  EXPECT_EQ(bundle_of(few, {{0, 12}, 6}), 1) << "a power of two that divides the group";
  EXPECT_EQ(bundle_of(few, {{2, 10}, 4}), 1) << "heads of one KV head alone";
  EXPECT_EQ(bundle_of(few, {{0, 9}, 3}), 0);
  EXPECT_EQ(bundle_of(test::rectangle(512, 512), {{0, 8}, 8}), 0) << "no key streams less often";
  EXPECT_EQ(bundle_of(test::banded(16384, 16384, 0, unbounded), {{0, 8}, 8}), 0);
  EXPECT_EQ(bundle_of(test::banded(16384, 16384, 0, 199), {{0, 8}, 8}), 3);
}

/// Causal documents one behind the other.
[[nodiscard]] std::vector<schedule::Slice> documents(const std::vector<i64>& lengths) {
  std::vector<schedule::Slice> slices;
  i64 row = 0;
  for (const i64 length : lengths) {
    slices.push_back(test::banded(length, length, 0, unbounded));
    slices.back().q_row = slices.back().k_row = slices.back().dk_row = row;
    row += length;
  }
  return slices;
}

/// Rows at which tiles of queries begin.
[[nodiscard]] std::vector<int> tile_begins(const std::vector<i64>& lengths) {
  const std::vector<schedule::Slice> slices = documents(lengths);
  const QueryTiles tiles =
      query_tiles({slices.data(), static_cast<i64>(slices.size())},
                  std::accumulate(lengths.begin(), lengths.end(), i64{0}), {{0, 1}, 1}, 128);
  std::vector<int> begins;
  for (const TileEntry& tile : tiles.table.tiles) begins.push_back(tile.row);
  std::sort(begins.begin(), begins.end());
  return begins;
}

TEST(HopperBlockTiles, TilesBeginWithDocumentsWhereFewerKeysStream) {
  EXPECT_EQ(tile_begins({200, 200}), (std::vector<int>{0, 128, 200, 328}));
  EXPECT_EQ(tile_begins({384, 20, 20, 20, 356}), (std::vector<int>{0, 128, 256, 384, 444, 572, 700}))
      << "short documents share a tile";
  EXPECT_EQ(tile_begins({130, 130, 130}), (std::vector<int>{0, 128, 256, 384}))
      << "no fewer: more tiles cost more";
  EXPECT_EQ(tile_begins({256, 256}), (std::vector<int>{0, 128, 256, 384}));
}

/// Tiles of keys that causal documents are cut into, by row.
[[nodiscard]] std::vector<Range> key_ranges(const std::vector<i64>& lengths) {
  const std::vector<schedule::Slice> slices = documents(lengths);
  const i64 rows = std::accumulate(lengths.begin(), lengths.end(), i64{0});
  const TileTable<QuerySegment> table =
      key_tiles({slices.data(), static_cast<i64>(slices.size())}, {{rows, true}}, key_tile(128, 128));
  std::vector<Range> ranges;
  for (const TileEntry& tile : table.tiles) ranges.push_back({tile.row, tile.row_end});
  std::sort(ranges.begin(), ranges.end(), [](Range a, Range b) { return a.begin < b.begin; });
  return ranges;
}

TEST(HopperBlockTiles, TilesOfKeysBeginWithDocumentsWhereThatIsLessWork) {
  EXPECT_EQ(key_ranges({200, 1000}), (std::vector<Range>{{0, 128},
                                                         {128, 200},
                                                         {200, 328},
                                                         {328, 456},
                                                         {456, 584},
                                                         {584, 712},
                                                         {712, 840},
                                                         {840, 968},
                                                         {968, 1096},
                                                         {1096, 1200}}));
  EXPECT_EQ(key_ranges({130, 130}), (std::vector<Range>{{0, 128}, {128, 256}, {256, 260}}))
      << "no fewer steps: more tiles cost more";
  EXPECT_EQ(key_ranges({256, 256}), (std::vector<Range>{{0, 128}, {128, 256}, {256, 384}, {384, 512}}));
}

TEST(HopperBlockTiles, HeadsTakeTurnsAtSpansOfQueries) {
  const schedule::Slice slice = test::rectangle(10000, 128);
  const auto spans = [&](int group) {
    const TileTable<QuerySegment> table = key_tiles({&slice, 1}, {{128, true}}, key_tile(128, 128), group);
    std::vector<Range> rows;
    for (const QuerySegment& s : table.segments) rows.push_back({s.begin, s.end});
    return rows;
  };
  EXPECT_EQ(spans(1), (std::vector<Range>{{0, 10000}}));
  EXPECT_EQ(spans(4), (std::vector<Range>{{8192, 10000}, {4096, 8192}, {0, 4096}}));
}

TEST(HopperBlockTiles, BlocksBeginAtDifferentQueries) {
  // Four blocks of one tile of keys, which all queries see.
  constexpr KeyTile size = key_tile(128, 128);
  std::vector<schedule::Slice> slices(4, test::rectangle(512, size.keys));
  const int block[] = {0, 1, 2, 3};
  const TileTable<QuerySegment> table =
      key_tiles({slices.data(), 4, block}, std::vector<GradRows>(4, {size.keys, true}), size);
  for (const TileEntry& tile : table.tiles)
    EXPECT_EQ(table.segments[static_cast<std::size_t>(tile.segment_begin)].begin, tile.block * size.keys);
}

TEST(HopperBlockTiles, ListsOfNothing) {
  const TileTable<QuerySegment> none = key_tiles({nullptr, 0}, {{300, false}, {0, true}}, {128, 64});
  EXPECT_TRUE(none.tiles.empty());
  EXPECT_EQ(key_tiles({nullptr, 0}, {{300, false}, {300, true}}, {128, 64}).tiles.size(), 3U);
  EXPECT_EQ(query_tiles({nullptr, 0}, 300, {{0, 8}, 4}, 128).table.busy, 0);
  TileTable<QuerySegment> idle = key_tiles({nullptr, 0}, {{300, true}}, {128, 64});
  const ClaimRuns runs = order_by_block(idle);
  EXPECT_EQ(runs.all, std::vector<int>{3});
}

}  // namespace
}  // namespace usp::kernels::hopper
