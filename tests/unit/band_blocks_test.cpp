// SPDX-License-Identifier: Apache-2.0
// Slices as the blocks that cuDNN is called for: the same pairs, and few calls where few do.
#include "usp/schedule/kernel_traits.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace usp::test {
namespace {

using Pairs = std::set<std::pair<i64, i64>>;

Pairs pairs_of(const std::vector<schedule::Slice>& slices) {
  Pairs pairs;
  for (const schedule::Slice& s : slices)
    for (i64 i = 0; i < s.q_count; ++i)
      for (i64 j = 0; j < s.k_count; ++j) {
        const i64 difference = s.q_pos + i * s.q_step - s.k_pos - j * s.k_step;
        if (difference >= s.diff_min && difference <= s.diff_max) pairs.insert({s.q_row + i, s.k_row + j});
      }
  return pairs;
}

/// By the bounds that cuDNN is given.
Pairs pairs_of(const schedule::BandBlock& b) {
  Pairs pairs;
  for (i64 i = 0; i < b.q_rows.size(); ++i)
    for (i64 j = 0; j < b.k_rows.size(); ++j) {
      if (b.bounds_right() && j > i + b.right_bound()) continue;
      if (b.bounds_left() && j <= i - b.left_bound()) continue;
      pairs.insert({b.q_rows.begin + i, b.k_rows.begin + j});
    }
  return pairs;
}

schedule::BlockSplit divided(const std::vector<schedule::Slice>& slices, bool keeps_shift) {
  return schedule::split_into_blocks(schedule::kernel_traits(Backend::cudnn), slices.data(),
                                     static_cast<i64>(slices.size()), keeps_shift);
}

schedule::Slice rectangle(i64 rows, i64 keys) {
  schedule::Slice s;
  s.q_count = rows, s.k_count = keys;
  return s;
}
void expect_same_pairs(const std::vector<schedule::Slice>& slices) {
  const schedule::BlockSplit found = divided(slices, true);
  Pairs pairs = pairs_of(found.rest);
  for (const schedule::BandBlock& b : found.blocks) {
    EXPECT_GE(b.right_bound(), 0);
    EXPECT_GE(b.left_bound(), 1);
    const Pairs own = pairs_of(b);
    EXPECT_EQ(static_cast<i64>(own.size()), b.pairs);
    EXPECT_EQ(own, pairs_of({schedule::slice_of(b)}));
    for (const auto& pair : own) EXPECT_TRUE(pairs.insert(pair).second);
  }
  EXPECT_EQ(pairs, pairs_of(slices));
}

schedule::Slice at(schedule::Slice s, i64 q, i64 k) {
  s.q_row = s.q_pos = q;
  s.k_row = s.k_pos = s.dk_row = k;
  return s;
}
schedule::Slice triangle(i64 rows) {
  schedule::Slice s = rectangle(rows, rows);
  s.diff_min = 0;
  return s;
}

TEST(BandBlocks, PiecesOfAZigzagRankAreOneTriangle) {
  // Rows 0..9 are chunk 1 and rows 10..19 chunk 6: positions far apart, rows side by side.
  std::vector<schedule::Slice> slices{at(triangle(10), 0, 0), at(rectangle(10, 10), 10, 0),
                                      at(triangle(10), 10, 10)};
  slices[1].q_pos = 60, slices[2].q_pos = slices[2].k_pos = 60;
  const schedule::BlockSplit found = divided(slices, true);
  ASSERT_EQ(found.blocks.size(), 1U);
  EXPECT_TRUE(found.rest.empty());
  const schedule::BandBlock& b = found.blocks.front();
  EXPECT_EQ(b.q_rows, (Range{0, 20}));
  EXPECT_EQ(b.k_rows, (Range{0, 20}));
  EXPECT_EQ(b.right_bound(), 0);
  EXPECT_FALSE(b.bounds_left());
  EXPECT_EQ(b.pairs, 210);
  expect_same_pairs(slices);
}

TEST(BandBlocks, FullChunksAreOneRectangle) {
  const std::vector<schedule::Slice> slices{at(rectangle(8, 5), 0, 0), at(rectangle(8, 5), 8, 0)};
  const schedule::BlockSplit found = divided(slices, true);
  ASSERT_EQ(found.blocks.size(), 1U);
  EXPECT_FALSE(found.blocks.front().bounds_right());
  EXPECT_FALSE(found.blocks.front().bounds_left());
  EXPECT_EQ(found.blocks.front().pairs, 80);
}

TEST(BandBlocks, DocumentsStayApart) {
  const std::vector<schedule::Slice> slices{at(triangle(7), 0, 0), at(triangle(9), 7, 7)};
  EXPECT_EQ(divided(slices, true).blocks.size(), 2U);
  expect_same_pairs(slices);
  std::vector<schedule::Slice> many;
  for (i64 i = 0; i < 20; ++i) many.push_back(at(triangle(3), 3 * i, 3 * i));
  const schedule::BlockSplit left = divided(many, true);
  EXPECT_TRUE(left.blocks.empty());
  EXPECT_EQ(left.rest.size(), 20U);
  EXPECT_EQ(left.why, schedule::UnsupportedReason::many_blocks);
}

TEST(BandBlocks, RowsOfGradientsThatDifferKeepBlocksApart) {
  std::vector<schedule::Slice> slices{at(rectangle(8, 5), 0, 0), at(rectangle(8, 5), 0, 5)};
  slices[1].dk_row = 6;
  EXPECT_EQ(divided(slices, true).blocks.size(), 2U);
  EXPECT_EQ(divided(slices, false).blocks.size(), 1U);
}

TEST(BandBlocks, UnequalStepsAreLeft) {
  schedule::Slice s = triangle(9);
  s.q_step = 2;
  const schedule::BlockSplit found = divided({s}, false);
  EXPECT_TRUE(found.blocks.empty());
  EXPECT_EQ(found.rest.size(), 1U);
  EXPECT_EQ(found.why, schedule::UnsupportedReason::unequal_steps);
}

TEST(BandBlocks, AnySlicesKeepTheirPairs) {
  std::mt19937 random(3);
  const auto below = [&](int n) { return static_cast<i64>(random() % static_cast<unsigned>(n)); };
  for (int trial = 0; trial < 500; ++trial) {
    // A grid of chunks, each with a band of its own: disjoint by construction.
    std::vector<schedule::Slice> slices;
    const i64 chunk = 3 + below(5);
    for (i64 q = 0; q < 3; ++q)
      for (i64 k = 0; k < 3; ++k) {
        if (below(4) == 0) continue;
        schedule::Slice s = at(rectangle(chunk, chunk), q * chunk, k * chunk);
        s.q_step = s.k_step = 1 + below(3);
        if (below(2) == 0) s.diff_min = below(20) - 10;
        if (below(3) == 0) s.diff_max = below(20) - 5;
        slices.push_back(s);
      }
    expect_same_pairs(slices);
  }
}

}  // namespace
}  // namespace usp::test
