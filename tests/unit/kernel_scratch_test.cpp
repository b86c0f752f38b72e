// SPDX-License-Identifier: Apache-2.0
#include "usp/schedule/kernel_scratch.hpp"

#include "usp/schedule/expand.hpp"
#include "usp/schedule/generate.hpp"
#include "usp/schedule/plan.hpp"

#include <gtest/gtest.h>

namespace usp {
namespace {

[[nodiscard]] AttentionPlan plan_of(Backend backend, int ring, int kv_heads, int ulysses = 1) {
  AttentionPlan p;
  p.backend = backend;
  p.mesh = {1, ring, ulysses};
  p.shape = {1, 1024, 1024, 8, kv_heads, 64, 64, DType::bf16};
  p.band = {0, unbounded};
  return p;
}

[[nodiscard]] i64 scratch(const AttentionPlan& plan, bool training = true) {
  const schedule::TokenMap geometry(plan, Documents::single(plan.shape.q_tokens, plan.shape.kv_tokens));
  schedule::CompactSchedule compact;
  schedule::generate(plan, geometry.heads().shared_kv(), compact);
  const schedule::RankSchedule forward = schedule::expand(geometry, compact, 0, Pass::forward);
  const schedule::RankSchedule backward = schedule::expand(geometry, compact, 0, Pass::backward);
  std::vector<const schedule::RankSchedule*> schedules{&forward};
  if (training) schedules.push_back(&backward);
  return schedule::kernel_scratch_bytes(plan, schedules);
}

constexpr i64 rows = 1024, heads = 8, width = 64;

TEST(KernelScratch, OneCallOfCudnnKeepsItsStatisticsAndItsOwnSums) {
  const i64 stats = rows * heads * 4, sums = rows * heads * (width + 1) * 4 + 256;
  EXPECT_EQ(scratch(plan_of(Backend::cudnn, 1, 8)), stats + sums);
  EXPECT_EQ(scratch(plan_of(Backend::cudnn, 1, 8), false), stats + 256);
}

TEST(KernelScratch, FewerKvHeadsMakeCudnnKeepGradientsOfEveryQueryHead) {
  const i64 keys = rows * heads * 2 * width * 2;
  EXPECT_EQ(scratch(plan_of(Backend::cudnn, 1, 2)), scratch(plan_of(Backend::cudnn, 1, 8)) + keys);
}

/// Of the own block: dq, dk, dv and statistics; and the library's own sums.
[[nodiscard]] i64 hop_of_cudnn(i64 row_heads) {
  const i64 block = row_heads * width * 2 * 3 + row_heads * 4;
  const i64 sums = row_heads * (width + 1) * 4 + 256;
  return block + sums;
}

TEST(KernelScratch, HopsOfCudnnWaitToBeMerged) {
  EXPECT_EQ(scratch(plan_of(Backend::cudnn, 2, 8)), hop_of_cudnn(rows / 2 * heads));
}

TEST(KernelScratch, CudnnRoundsTheOutputThatAnExchangeLeftInFp32) {
  const i64 row_heads = rows / 2 * heads / 2, rounded = row_heads * width * 2;
  EXPECT_EQ(scratch(plan_of(Backend::cudnn, 2, 8, 2)), hop_of_cudnn(row_heads) + rounded);
}

TEST(KernelScratch, MmaSumsDqWhereItIsRounded) {
  EXPECT_EQ(scratch(plan_of(Backend::mma, 1, 2)), rows * heads * width * 4);
  EXPECT_EQ(scratch(plan_of(Backend::mma, 2, 2)), 0);
}

TEST(KernelScratch, HopperSumsDqWhereItIsRoundedAndLeavesRoomToItsFallback) {
  AttentionPlan plan = plan_of(Backend::hopper, 1, 2);
  EXPECT_EQ(scratch(plan), rows * heads * width * 4);
  AttentionPlan added = plan;
  added.shape.head_dim_qk = added.shape.head_dim_v = 2 * width;
  EXPECT_EQ(scratch(added), rows * heads * 2 * width * 4);
  AttentionPlan wide = plan;
  wide.shape.head_dim_qk = wide.shape.head_dim_v = 4 * width;
  EXPECT_EQ(scratch(wide), 0) << "dq has a launch of its own, which rounds it";
  AttentionPlan capped = added;
  capped.score.softcap = 30;
  EXPECT_EQ(scratch(capped), 0) << "with a softcap dq has a launch of its own";
  added.mesh = {1, 2, 1};
  EXPECT_EQ(scratch(added), 0);
  plan.score.alibi = true;
  EXPECT_EQ(scratch(plan), scratch(plan_of(Backend::mma, 1, 2)));
}

TEST(KernelScratch, PassesOfTwoBackendsKeepTheirOwn) {
  for (const int ring : {1, 2}) {
    EXPECT_EQ(scratch(plan_of(Backend::hopper_cudnn, ring, 2), false),
              scratch(plan_of(Backend::hopper, ring, 2), false));
    EXPECT_EQ(scratch(plan_of(Backend::hopper_cudnn, ring, 2)), scratch(plan_of(Backend::cudnn, ring, 2)));
  }
  AttentionPlan plan = plan_of(Backend::hopper_cudnn, 1, 2);
  plan.score.alibi = true;  // both leave all to kernels of their own
  AttentionPlan mma = plan;
  mma.backend = Backend::mma;
  EXPECT_GE(scratch(plan), scratch(mma));
}

TEST(KernelScratch, HostKeepsNone) {
  EXPECT_EQ(scratch(plan_of(Backend::cpu, 2, 8)), 0);
}

}  // namespace
}  // namespace usp
