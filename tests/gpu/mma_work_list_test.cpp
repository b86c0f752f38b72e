// SPDX-License-Identifier: Apache-2.0
#include "counting_allocator.hpp"
#include "random_cases.hpp"
#include "slice_pairs.hpp"
#include "work_list.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <random>

/// The tables of the GPU kernels, which are made on the host, against the pairs of the slices.
namespace usp::mma {
namespace {

using test::Draw;
using test::sees;
using test::visible_pairs;

/// A tile that needs no mask must be visible as a whole, and every visible pair must be met once.
void check_queries(const Draw& draw, int tile_rows) {
  const test::Case& c = draw.problem;
  const auto table = kernels::tiles::tiles_of_queries({c.slices.data(), static_cast<i64>(c.slices.size())},
                                                      kernels::tiles::even_tiles(c.q_rows, tile_rows));
  i64 met = 0;
  for (const kernels::tiles::TileEntry& tile : table.tiles) {
    const i64 end = std::min<i64>(tile.row + tile_rows, c.q_rows);
    EXPECT_EQ(tile.row_end, end);
    for (int n = tile.segment_begin; n < tile.segment_end; ++n) {
      const kernels::tiles::KeySegment& segment = table.segments[static_cast<std::size_t>(n)];
      const schedule::Slice& s = c.slices[static_cast<std::size_t>(segment.slice)];
      for (i64 row = tile.row; row < end; ++row) {
        for (i64 key = segment.begin; key < segment.end; ++key) met += sees(s, row, key) ? 1 : 0;
        for (i64 key = segment.full_begin; key < segment.full_end; ++key)
          ASSERT_TRUE(sees(s, row, key)) << draw.text() << " row " << row << " key " << key;
      }
    }
  }
  EXPECT_EQ(met, visible_pairs(c.slices)) << draw.text();
}

void check_keys(const Draw& draw, int tile_rows) {
  const test::Case& c = draw.problem;
  const auto table =
      kernels::tiles::tiles_of_keys({c.slices.data(), static_cast<i64>(c.slices.size())},
                                    {kernels::tiles::even_tiles(c.grad_rows(), tile_rows)}, tile_rows);
  i64 met = 0;
  for (const kernels::tiles::TileEntry& tile : table.tiles)
    for (int n = tile.segment_begin; n < tile.segment_end; ++n) {
      const kernels::tiles::QuerySegment& segment = table.segments[static_cast<std::size_t>(n)];
      const schedule::Slice& s = c.slices[static_cast<std::size_t>(segment.slice)];
      for (i64 row = segment.begin; row < segment.end; ++row)
        for (i64 gradient = tile.row; gradient < tile.row + tile_rows; ++gradient) {
          const bool seen = sees(s, row, gradient + segment.shift);
          met += seen ? 1 : 0;
          const bool loaded = gradient >= segment.load_begin && gradient < segment.load_end;
          ASSERT_TRUE(segment.masked != 0 || seen)
              << draw.text() << " row " << row << " gradient " << gradient;
          ASSERT_TRUE(loaded || !seen) << draw.text() << " row " << row << " gradient " << gradient;
        }
    }
  EXPECT_EQ(met, visible_pairs(c.slices)) << draw.text();
}

TEST(MmaWorkList, MeetsEveryVisiblePairOnce) {
  std::vector<Draw> draws = test::contract_draws();
  for (std::uint64_t seed = 1; seed <= 60; ++seed) draws.push_back(test::random_draw(seed));
  for (const Draw& draw : draws)
    for (const int rows : {64, 128}) {
      check_queries(draw, rows);
      check_keys(draw, rows);
    }
}

TEST(MmaWorkList, KeysThatLieApartAreLoadedByTurns) {
  // Two pieces of one tile with rows between that are no keys: their memory may hold anything.
  std::vector<schedule::Slice> slices(2);
  slices[0].q_count = slices[1].q_count = 10;
  slices[0].k_count = slices[1].k_count = 8;
  slices[1].k_row = slices[1].dk_row = 20;
  const std::vector<std::vector<Range>> rows{{{0, 40}}};
  const auto table = kernels::tiles::tiles_of_keys({slices.data(), 2}, rows, 64);
  ASSERT_EQ(table.segments.size(), 2u);
  EXPECT_EQ(table.segments[0].load_end, 8);
  EXPECT_EQ(table.segments[1].load_begin, 20);
  slices[1].k_row = slices[1].dk_row = 8;
  const auto joined = kernels::tiles::tiles_of_keys({slices.data(), 2}, rows, 64);
  EXPECT_EQ(joined.segments[0].load_end, 16);
  EXPECT_EQ(joined.segments[1].load_begin, 0);
}

TEST(MmaWorkList, HeavyTilesComeFirst) {
  const schedule::Slice causal = test::banded(1000, 1000, 0, unbounded);
  const auto table = kernels::tiles::tiles_of_queries({&causal, 1}, kernels::tiles::even_tiles(1100, 128));
  EXPECT_EQ(table.tiles.front().row, 7 * 128);
  EXPECT_EQ(table.tiles.back().row, 8 * 128);
  EXPECT_EQ(table.busy, 8);
}

/// Batches whose documents change in every step, a few of them in use at a time.
TEST(MmaTables, OfNewBatchesTakeNoMemoryInTheEnd) {
  using Table = kernels::tiles::DeviceTable<kernels::tiles::KeySegment>;
  test::CountingAllocator allocator;
  const auto memory = kernels::make_host_memory(allocator);
  kernels::tiles::TablePool pool(*memory);
  std::deque<std::unique_ptr<Table>> in_use;
  std::mt19937_64 random(7);
  i64 warm = 0;
  for (int step = 0; step < 400; ++step) {
    std::vector<schedule::Slice> documents;
    for (i64 row = 0; row < 4000;) {
      const i64 tokens = std::min<i64>(1 + static_cast<i64>(random() % 200), 4000 - row);
      schedule::Slice s = test::banded(tokens, tokens, 0, unbounded);
      s.q_row = s.k_row = row;
      documents.push_back(s);
      row += tokens;
    }
    const kernels::tiles::SliceList list{documents.data(), static_cast<i64>(documents.size())};
    in_use.push_back(std::make_unique<Table>(
        pool, list, kernels::tiles::tiles_of_queries(list, kernels::tiles::even_tiles(4000, 128))));
    EXPECT_EQ(in_use.back()->slices()[1].q_row, documents[1].q_row);
    EXPECT_EQ(in_use.back()->tile_count(true), 32);
    if (in_use.size() > 8) in_use.pop_front();
    if (step == 200) warm = allocator.allocations;
  }
  EXPECT_GE(warm, 9);
  EXPECT_EQ(allocator.allocations, warm);
  in_use.clear();
}

TEST(MmaTables, MemoryInUseIsNotGivenToAnother) {
  using Table = kernels::tiles::DeviceTable<kernels::tiles::KeySegment>;
  kernels::tiles::TablePool pool(kernels::host_memory());
  const schedule::Slice causal = test::banded(100, 100, 0, unbounded);
  const kernels::tiles::SliceList list{&causal, 1};
  const auto table = [&] {
    return std::make_unique<Table>(
        pool, list, kernels::tiles::tiles_of_queries(list, kernels::tiles::even_tiles(100, 64)));
  };
  auto first = table();
  const auto second = table();
  EXPECT_NE(first->slices(), second->slices());
  const auto* const left = first->slices();
  first.reset();
  EXPECT_EQ(table()->slices(), left);
}

}  // namespace
}  // namespace usp::mma
