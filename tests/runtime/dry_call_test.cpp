// SPDX-License-Identifier: Apache-2.0
// What a dry run reports while it runs, what it counts, and what it refuses before it starts.
#include "usp/base/error.hpp"
#include "usp/runtime/call_run.hpp"
#include "usp/schedule/expand.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace usp {
namespace {

struct Heard : WorkProgress {
  std::vector<i64> done;
  i64 total = 0;
  void reached(std::int64_t now, std::int64_t of, const char* /*units*/) override {
    done.push_back(now);
    total = of;
  }
};

AttentionPlan plan_of(Mesh mesh, Method method) {
  AttentionPlan plan;
  plan.shape = {1, 1 << 20, 1 << 20, 8, 4, 64, 64, DType::bf16};
  plan.band = {0, unbounded};
  plan.mesh = mesh;
  plan.method = method;
  return plan;
}

Documents one_document() {
  return Documents::single(1 << 20, 1 << 20);
}

TEST(DryCall, TellsRankByRank) {
  Heard heard;
  const AttentionPlan plan = plan_of({1, 3, 2}, Method::ring);
  (void)dry_run_call(plan, one_document(), true, &heard);
  EXPECT_EQ(heard.done, (std::vector<i64>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(heard.total, 6);
}

TEST(DryCall, CountsWhatTheSchedulesSay) {
  for (const auto& [method, gated] :
       {std::pair(Method::ring, false), std::pair(Method::ring_direct, false),
        std::pair(Method::all_gather_kv, false), std::pair(Method::all_gather_kv, true)}) {
    AttentionPlan plan = plan_of({1, 40, 2}, method);
    plan.gated = gated;
    const RunResult run = dry_run_call(plan, one_document(), true);
    const schedule::TokenMap geometry(plan, one_document());
    schedule::CompactSchedule compact;
    schedule::generate(plan, geometry.heads().shared_kv(), compact);
    for (const int rank : {0, 41, 79})
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        const schedule::RankSchedule schedule = schedule::expand(geometry, compact, rank, pass);
        const PassRecord& record =
            run.ranks[static_cast<std::size_t>(rank)].record[pass == Pass::forward ? 0 : 1];
        const PassRecord planned{.transfers = planned_transfers(schedule)};
        for (const bool send : {false, true}) {
          EXPECT_GT(planned.planned_bytes(send), 0);
          EXPECT_EQ(record.planned_bytes(send), planned.planned_bytes(send));
          EXPECT_EQ(record.executed_bytes(send), planned.planned_bytes(send));
        }
        EXPECT_EQ(record.workspace_bytes, schedule::pack_workspace(schedule, 1).bytes);
      }
    EXPECT_EQ(run.bytes_difference(), "");
  }
}

TEST(DryCall, TooLongSchedulesAreRefusedBeforeTheyAreMade) {
  for (const Method method : {Method::ring, Method::ring_direct, Method::all_gather_kv}) {
    Heard heard;
    try {
      (void)dry_run_call(plan_of({1, 32767, 1}, method), one_document(), true, &heard);
      FAIL() << "played";
    } catch (const Infeasible& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("sends and receives; the limit is 8388608"), std::string::npos) << text;
      EXPECT_NE(text.find("smaller ring"), std::string::npos) << text;
    }
    EXPECT_TRUE(heard.done.empty());
  }
}

}  // namespace
}  // namespace usp
