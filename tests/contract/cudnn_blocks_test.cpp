// SPDX-License-Identifier: Apache-2.0
// Slices as the blocks that cuDNN is called for: the same pairs, and few calls where few do.
#include "attention_cases.hpp"
#include "cudnn_kernel.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace usp::test {
namespace {

using cuda::cudnn::Block;
using cuda::cudnn::Blocks;
using cuda::cudnn::blocks_of;
using Pairs = std::set<std::pair<i64, i64>>;

Pairs pairs_of(const std::vector<Slice>& slices) {
  Pairs pairs;
  for (const Slice& s : slices)
    for (i64 i = 0; i < s.q_count; ++i)
      for (i64 j = 0; j < s.k_count; ++j) {
        const i64 difference = s.q_pos + i * s.q_step - s.k_pos - j * s.k_step;
        if (difference >= s.diff_min && difference <= s.diff_max) pairs.insert({s.q_row + i, s.k_row + j});
      }
  return pairs;
}

/// By the bounds that cuDNN is given.
Pairs pairs_of(const Block& b) {
  Pairs pairs;
  for (i64 i = 0; i < b.q_rows.size(); ++i)
    for (i64 j = 0; j < b.k_rows.size(); ++j) {
      if (b.bounds_right() && j > i + b.right_bound()) continue;
      if (b.bounds_left() && j <= i - b.left_bound()) continue;
      pairs.insert({b.q_rows.begin + i, b.k_rows.begin + j});
    }
  return pairs;
}

void expect_same_pairs(const std::vector<Slice>& slices) {
  const Blocks found = blocks_of(slices.data(), static_cast<i64>(slices.size()), true);
  Pairs pairs = pairs_of(found.rest);
  for (const Block& b : found.blocks) {
    EXPECT_GE(b.right_bound(), 0);
    EXPECT_GE(b.left_bound(), 1);
    const Pairs own = pairs_of(b);
    EXPECT_EQ(static_cast<i64>(own.size()), b.pairs);
    EXPECT_EQ(own, pairs_of({slice_of(b)}));
    for (const auto& pair : own) EXPECT_TRUE(pairs.insert(pair).second);
  }
  EXPECT_EQ(pairs, pairs_of(slices));
}

Slice at(Slice s, i64 q, i64 k) {
  s.q_row = s.q_pos = q;
  s.k_row = s.k_pos = s.dk_row = k;
  return s;
}
Slice triangle(i64 rows) {
  return banded(rows, rows, 0, unbounded);
}

TEST(CudnnBlocks, PiecesOfAZigzagRankAreOneTriangle) {
  // Rows 0..9 are chunk 1 and rows 10..19 chunk 6: positions far apart, rows side by side.
  std::vector<Slice> slices{at(triangle(10), 0, 0), at(rectangle(10, 10), 10, 0), at(triangle(10), 10, 10)};
  slices[1].q_pos = 60, slices[2].q_pos = slices[2].k_pos = 60;
  const Blocks found = blocks_of(slices.data(), 3, true);
  ASSERT_EQ(found.blocks.size(), 1U);
  EXPECT_TRUE(found.rest.empty());
  const Block& b = found.blocks.front();
  EXPECT_EQ(b.q_rows, (Range{0, 20}));
  EXPECT_EQ(b.k_rows, (Range{0, 20}));
  EXPECT_EQ(b.right_bound(), 0);
  EXPECT_FALSE(b.bounds_left());
  EXPECT_EQ(b.pairs, 210);
  expect_same_pairs(slices);
}

TEST(CudnnBlocks, FullChunksAreOneRectangle) {
  const std::vector<Slice> slices{at(rectangle(8, 5), 0, 0), at(rectangle(8, 5), 8, 0)};
  const Blocks found = blocks_of(slices.data(), 2, true);
  ASSERT_EQ(found.blocks.size(), 1U);
  EXPECT_FALSE(found.blocks.front().bounds_right());
  EXPECT_FALSE(found.blocks.front().bounds_left());
  EXPECT_EQ(found.blocks.front().pairs, 80);
}

TEST(CudnnBlocks, DocumentsStayApart) {
  const std::vector<Slice> slices{at(triangle(7), 0, 0), at(triangle(9), 7, 7)};
  EXPECT_EQ(blocks_of(slices.data(), 2, true).blocks.size(), 2U);
  expect_same_pairs(slices);
  std::vector<Slice> many;
  for (i64 i = 0; i < 20; ++i) many.push_back(at(triangle(3), 3 * i, 3 * i));
  const Blocks left = blocks_of(many.data(), 20, true);
  EXPECT_TRUE(left.blocks.empty());
  EXPECT_EQ(left.rest.size(), 20U);
  EXPECT_FALSE(left.why.empty());
}

TEST(CudnnBlocks, RowsOfGradientsThatDifferKeepBlocksApart) {
  std::vector<Slice> slices{at(rectangle(8, 5), 0, 0), at(rectangle(8, 5), 0, 5)};
  slices[1].dk_row = 6;
  EXPECT_EQ(blocks_of(slices.data(), 2, true).blocks.size(), 2U);
  EXPECT_EQ(blocks_of(slices.data(), 2, false).blocks.size(), 1U);
}

TEST(CudnnBlocks, UnequalStepsAreLeft) {
  Slice s = triangle(9);
  s.q_step = 2;
  const Blocks found = blocks_of(&s, 1, false);
  EXPECT_TRUE(found.blocks.empty());
  EXPECT_EQ(found.rest.size(), 1U);
}

TEST(CudnnBlocks, AnySlicesKeepTheirPairs) {
  std::mt19937 random(3);
  const auto below = [&](int n) { return static_cast<i64>(random() % static_cast<unsigned>(n)); };
  for (int trial = 0; trial < 500; ++trial) {
    // A grid of chunks, each with a band of its own: disjoint by construction.
    std::vector<Slice> slices;
    const i64 chunk = 3 + below(5);
    for (i64 q = 0; q < 3; ++q)
      for (i64 k = 0; k < 3; ++k) {
        if (below(4) == 0) continue;
        Slice s = at(rectangle(chunk, chunk), q * chunk, k * chunk);
        s.q_step = s.k_step = 1 + below(3);
        if (below(2) == 0) s.diff_min = below(20) - 10;
        if (below(3) == 0) s.diff_max = below(20) - 5;
        slices.push_back(s);
      }
    expect_same_pairs(slices);
  }
}

TEST(CudnnTraits, SayWhyNot) {
  ScoreTerms terms;
  cuda::cudnn::CallTraits call;
  call.dqk = call.dv = 128;
  call.query_heads = {0, 8};
  call.group = 4;
  call.terms = &terms;
  EXPECT_EQ(why_not(call), "");
  const auto refused = [&](auto&& change) {
    cuda::cudnn::CallTraits c = call;
    change(c);
    return !why_not(c).empty();
  };
  EXPECT_TRUE(refused([](auto& c) { c.query_heads = {2, 8}; }));
  EXPECT_TRUE(refused([](auto& c) { c.dqk = 100; }));
  EXPECT_TRUE(refused([](auto& c) { c.dv = 264; }));
  EXPECT_TRUE(refused([](auto& c) { c.backward = c.deterministic = true; }));
  EXPECT_TRUE(refused([](auto& c) { c.backward = true, c.has_o = false; }));
  EXPECT_TRUE(refused([](auto& c) { c.backward = true, c.dqk = 160; }));
  EXPECT_FALSE(refused([](auto& c) { c.backward = true, c.dqk = 192; }));
  terms.softcap = 1;
  EXPECT_TRUE(refused([](auto&) {}));
}

}  // namespace
}  // namespace usp::test
