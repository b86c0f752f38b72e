// SPDX-License-Identifier: Apache-2.0
// AttentionPlan::split_own_block: the last dK/dV goes home while half of the own block is attended.
#include "schedule_audit.hpp"

#include "usp/base/error.hpp"
#include "usp/schedule/validate.hpp"

#include <gtest/gtest.h>

namespace usp::test {
namespace {

AttentionPlan ring_of(int ring, int query_heads, i64 tokens) {
  AttentionPlan plan;
  plan.shape = {1, tokens, tokens, query_heads, query_heads, 64, 64, DType::bf16};
  plan.mesh = {1, ring, 1};
  plan.band = {0, unbounded};
  return plan;
}

TEST(SplitOwnBlock, AttendsItsSecondHalfWhileTheLastPartialGoesHome) {
  for (const Method method : methods())
    for (const int chunks : {1, 2}) {
      AttentionPlan plan = ring_of(4, 8, 64);
      plan.method = method;
      if (method->two_level_ring) plan.mesh = {2, 2, 1};
      plan.head_chunks = chunks;
      plan.split_own_block = true;
      schedule::CompactSchedule split;
      schedule::generate(plan, false, split);
      const schedule::ComputeOp& last = split.backward.work.back();
      EXPECT_EQ(last.part, HeadPart::second_half) << method->word;
      EXPECT_EQ(last.offsets.begin, 0);
      EXPECT_TRUE(std::any_of(split.backward.transfers.begin(), split.backward.transfers.end(),
                              [&](const auto& move) {
                                return move.name == schedule::TransferName::dkv_return &&
                                       move.start <= last.tick && move.due == last.tick;
                              }))
          << method->word;
      // Nothing leaves before it is whole.
      for (const schedule::TransferOp& move : split.backward.transfers)
        if (move.name == schedule::TransferName::dqkv_all_to_all && move.heads.chunk == chunks - 1) {
          EXPECT_GT(move.start, last.tick) << method->word;
        }
      plan.split_own_block = false;
      schedule::CompactSchedule whole;
      schedule::generate(plan, false, whole);
      EXPECT_EQ(split.backward.ticks, whole.backward.ticks);
      EXPECT_EQ(split.backward.work.size(), whole.backward.work.size() + 1);
      EXPECT_EQ(split.forward.work.size(), whole.forward.work.size());
    }
}

TEST(SplitOwnBlock, CutsHeadsOnAGroupWhereThereAreTwo) {
  const Heads heads(12, 3, 1, 1);
  EXPECT_EQ(heads.query_of(0, 0, HeadPart::first_half), (Range{0, 8}));
  EXPECT_EQ(heads.query_of(0, 0, HeadPart::second_half), (Range{8, 12}));
  EXPECT_EQ(heads.kv_of(0, 0, HeadPart::second_half), (Range{2, 3}));
  const Heads one_group(6, 1, 1, 1);
  EXPECT_EQ(one_group.query_of(0, 0, HeadPart::second_half), (Range{3, 6}));
  EXPECT_EQ(one_group.kv_of(0, 0, HeadPart::second_half), (Range{0, 1}));
  const Heads one(1, 1, 1, 1);
  EXPECT_TRUE(one.query_of(0, 0, HeadPart::second_half).empty());
}

TEST(SplitOwnBlock, IsPlannedWhereHalvesFillACard) {
  EXPECT_TRUE(schedule::splits_own_block(ring_of(2, 16, 16384)));
  EXPECT_FALSE(schedule::splits_own_block(ring_of(2, 16, 4096)));
  EXPECT_FALSE(schedule::splits_own_block(ring_of(2, 1, 16384)));
  EXPECT_FALSE(schedule::splits_own_block(ring_of(1, 16, 1 << 20)));
  // Half of one KV group is a torn group, which cuDNN leaves to mma.
  AttentionPlan one_group = ring_of(2, 16, 16384);
  one_group.shape.kv_heads = 1;
  one_group.backend = Backend::cudnn;
  EXPECT_FALSE(schedule::splits_own_block(one_group));
  one_group.backend = Backend::mma;
  EXPECT_TRUE(schedule::splits_own_block(one_group));
  AttentionPlan plan = ring_of(2, 16, 1 << 20);
  plan.dkv_return = DkvReturn::cycle;
  EXPECT_FALSE(schedule::splits_own_block(plan));
  plan.split_own_block = true;
  EXPECT_THROW(check_attention_plan(plan), InvalidInput);
}

}  // namespace
}  // namespace usp::test
