// SPDX-License-Identifier: Apache-2.0
// The backend of each attend step: in expanded schedules, in plan files, and in what is said of them.
#include "usp/base/error.hpp"
#include "usp/base/json.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/explain.hpp"
#include "usp/planner/plan_attention.hpp"
#include "usp/planner/plan_print.hpp"
#include "usp/schedule/expand.hpp"

#include <gtest/gtest.h>

namespace usp {
namespace {

AttentionPlan plan_for(int ring, int ulysses, LayoutKind layout = LayoutKind::zigzag) {
  AttentionPlan plan;
  plan.shape = {1, 1024, 1024, 8, 4, 64, 64, DType::bf16};
  plan.mesh = {1, ring, ulysses};
  plan.layout = layout;
  plan.band = {0, unbounded};
  plan.backend = Backend::cudnn;
  return plan;
}

struct StepSeen {
  schedule::StepBackend backend;
  std::string reason;
};

/// Attend steps of a rank in order.
std::vector<StepSeen> steps_of(const AttentionPlan& plan, const Documents& documents, int rank, Pass pass) {
  const schedule::TokenMap geometry(plan, documents);
  schedule::CompactSchedule compact;
  schedule::generate(plan, geometry.heads().shared_kv(), compact);
  const schedule::RankSchedule schedule = schedule::expand(geometry, compact, rank, pass);
  EXPECT_EQ(schedule.backend, plan.backend);
  std::vector<StepSeen> seen;
  for (const schedule::Step& step : schedule.steps) {
    if (!step.operation->has_pairs) continue;
    const schedule::Slice* slices = schedule.slices.data() + step.slices.begin;
    seen.push_back(
        {step.backend, schedule::reason_of(schedule.backend, step.backend, pass, slices, step.slices.count)});
  }
  return seen;
}

std::vector<StepSeen> steps_of(const AttentionPlan& plan, int rank, Pass pass = Pass::forward) {
  return steps_of(plan, Documents::single(plan.shape.q_tokens, plan.shape.kv_tokens), rank, pass);
}

void expect_all(const std::vector<StepSeen>& steps, Backend use, schedule::UnsupportedReason why) {
  EXPECT_FALSE(steps.empty());
  for (const StepSeen& step : steps) {
    EXPECT_EQ(step.backend.use, use);
    EXPECT_EQ(step.backend.why, why) << step.reason;
    if (use == Backend::mma) {
      EXPECT_EQ(step.reason, schedule::text_of(why, Backend::cudnn));
    }
  }
}

TEST(StepBackends, ZigzagStepsAreOneBlockEach) {
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    const std::vector<StepSeen> steps = steps_of(plan_for(4, 2), 0, pass);
    ASSERT_EQ(steps.size(), 4U);
    expect_all(steps, Backend::cudnn, schedule::UnsupportedReason::none);
    EXPECT_EQ(steps[0].reason, "one triangle of 256 x 256");
    EXPECT_EQ(steps[1].reason, "one rectangle of 128 x 256");
  }
}

TEST(StepBackends, StripedStepsAreTrianglesAlsoWithoutTheDiagonal) {
  const std::vector<StepSeen> steps = steps_of(plan_for(4, 1, LayoutKind::striped), 0);
  ASSERT_EQ(steps.size(), 4U);
  expect_all(steps, Backend::cudnn, schedule::UnsupportedReason::none);
  EXPECT_EQ(steps[0].reason, "one triangle of 256 x 256");
  EXPECT_EQ(steps[1].reason, "one triangle of 255 x 255");
}

TEST(StepBackends, WindowsAreBands) {
  AttentionPlan plan = plan_for(1, 2);
  plan.band = {0, 99};
  const std::vector<StepSeen> steps = steps_of(plan, 1);
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_EQ(steps[0].backend,
            (schedule::StepBackend{Backend::cudnn, schedule::UnsupportedReason::none, 1, 0}));
  EXPECT_EQ(steps[0].reason, "one band of 1024 x 1024");
}

TEST(StepBackends, PackedDocumentsAreBlocksUntilThereAreTooMany) {
  const AttentionPlan plan = plan_for(1, 2);
  const auto first = [&](const std::vector<i64>& cu) {
    return steps_of(plan, Documents::packed(cu), 0, Pass::forward).at(0);
  };
  EXPECT_EQ(first({0, 500, 900, 1024}).reason, "3 blocks");
  const StepSeen mixed = first({0, 500, 1023, 1024});
  EXPECT_EQ(mixed.backend,
            (schedule::StepBackend{Backend::cudnn, schedule::UnsupportedReason::single_row, 2, 1}));
  EXPECT_EQ(mixed.reason, "2 blocks; 1 slice to mma: cuDNN's backward of a single query or key returns NaN");
  std::vector<i64> cu;
  for (i64 i = 0; i <= 16; ++i) cu.push_back(64 * i);
  EXPECT_EQ(first(cu).backend,
            (schedule::StepBackend{Backend::mma, schedule::UnsupportedReason::many_blocks, 0, 16}));
  cu.clear();
  for (i64 i = 0; i <= 64; ++i) cu.push_back(16 * i);
  EXPECT_EQ(first(cu).backend,
            (schedule::StepBackend{Backend::mma, schedule::UnsupportedReason::many_slices, 0, 64}));
}

TEST(StepBackends, RulesOfLogitsSendEveryStepToMma) {
  const auto all = [](auto&& change, schedule::UnsupportedReason why) {
    AttentionPlan plan = plan_for(2, 2);
    change(plan);
    for (const Pass pass : {Pass::forward, Pass::backward})
      expect_all(steps_of(plan, 3, pass), Backend::mma, why);
  };
  all([](auto& p) { p.score.softcap = 30; }, schedule::UnsupportedReason::softcap);
  all([](auto& p) { p.score.alibi = true; }, schedule::UnsupportedReason::alibi);
  all([](auto& p) { p.score.dropout = 0.1; }, schedule::UnsupportedReason::dropout);
  all([](auto& p) { p.score.block_tokens = 64; }, schedule::UnsupportedReason::block_mask);
  all([](auto& p) { p.shape.head_dim_qk = p.shape.head_dim_v = 100; },
      schedule::UnsupportedReason::head_dim_step);
}

TEST(StepBackends, UnequalHeadDimsAreLeftBackwardOnly) {
  AttentionPlan plan = plan_for(2, 2);
  plan.shape.head_dim_qk = 96;
  expect_all(steps_of(plan, 0, Pass::forward), Backend::cudnn, schedule::UnsupportedReason::none);
  expect_all(steps_of(plan, 0, Pass::backward), Backend::mma, schedule::UnsupportedReason::unequal_head_dims);
}

TEST(StepBackends, OfTwoPartsEachPassIsItsOwn) {
  AttentionPlan plan = plan_for(2, 2);
  plan.backend = Backend::hopper_cudnn;
  expect_all(steps_of(plan, 0, Pass::forward), Backend::hopper, schedule::UnsupportedReason::none);
  expect_all(steps_of(plan, 0, Pass::backward), Backend::cudnn, schedule::UnsupportedReason::none);
  // Of many documents cuDNN leaves all, to what takes it on these cards.
  std::vector<i64> cu;
  for (i64 i = 0; i <= 64; ++i) cu.push_back(16 * i);
  expect_all(steps_of(plan, Documents::packed(cu), 0, Pass::forward), Backend::hopper,
             schedule::UnsupportedReason::none);
  expect_all(steps_of(plan, Documents::packed(cu), 0, Pass::backward), Backend::hopper,
             schedule::UnsupportedReason::many_blocks);
  const StepSeen mixed = steps_of(plan, Documents::packed({0, 500, 1023, 1024}), 0, Pass::backward).at(0);
  EXPECT_EQ(mixed.backend.use, Backend::cudnn);
  EXPECT_NE(mixed.reason.find("slice"), std::string::npos);
  EXPECT_FALSE(schedule::computes_delta(plan));
  AttentionPlan capped = plan;
  capped.score.softcap = 30;
  expect_all(steps_of(capped, 0, Pass::forward), Backend::hopper, schedule::UnsupportedReason::none);
  expect_all(steps_of(capped, 0, Pass::backward), Backend::hopper, schedule::UnsupportedReason::softcap);
  plan.score.alibi = true;
  EXPECT_EQ(schedule::all_left_note(plan, true, {}, {}),
            "backend hopper_cudnn: every step goes to the mma kernel: " +
                schedule::text_of(schedule::UnsupportedReason::alibi, Backend::hopper) +
                "; plan with --backend mma");
}

TEST(StepBackends, TornGroupsAreLeftOnTheRanksThatTearThem) {
  AttentionPlan plan = plan_for(1, 3);  // 8 heads as 3 + 3 + 2, in groups of 2
  expect_all(steps_of(plan, 0), Backend::mma, schedule::UnsupportedReason::kv_group_spans_ranks);
  expect_all(steps_of(plan, 1), Backend::mma, schedule::UnsupportedReason::kv_group_spans_ranks);
  expect_all(steps_of(plan, 2), Backend::cudnn, schedule::UnsupportedReason::none);
}

TEST(StepBackends, PlansForOthersSayNothingMore) {
  AttentionPlan plan = plan_for(2, 2);
  plan.score.softcap = 30;
  for (const Backend backend : {Backend::cpu, Backend::mma}) {
    plan.backend = backend;
    for (const StepSeen& step : steps_of(plan, 0)) {
      EXPECT_EQ(step.backend, (schedule::StepBackend{backend, schedule::UnsupportedReason::none, 0, 0}));
      EXPECT_EQ(step.reason, "");
    }
  }
}

/// A planned call on threads.
struct Planned {
  topology::Cluster cluster;
  Calibration calibration;
  AttentionRequest request;
  AttentionResult result;

  template <class Change>
  Planned(int ring, int ulysses, Change&& change)
      : cluster(thread_cluster(ring * ulysses)), calibration(uncalibrated(data_sheet_of(cluster))) {
    request.cluster = &cluster;
    request.calibration = &calibration;
    request.shape = {1, 2048, 2048, 8, 4, 64, 64, DType::bf16};
    request.documents = Documents::single(2048, 2048);
    request.backend = Backend::cudnn;
    request.fixed.ring = ring;
    request.fixed.ulysses = ulysses;
    request.fixed.head_chunks = 1;
    change(request);
    result = plan_attention(request);
  }
  Planned(const Planned&) = delete;
  Planned& operator=(const Planned&) = delete;
  [[nodiscard]] PlanFile file() const { return make_plan_file(request, result.best()); }
  [[nodiscard]] std::string text() const { return attention_text(request, result); }
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(StepBackends, PlanningSumsThemUp) {
  const Planned all(1, 4, [](AttentionRequest&) {});
  EXPECT_TRUE(has(all.text(), "backend   cudnn: forward 4 of 4 steps; backward 4 of 4 steps\n"))
      << all.text();
  EXPECT_TRUE(all.result.notes.empty());
  const Planned torn(1, 3, [](AttentionRequest& r) { r.training = false; });
  EXPECT_TRUE(has(torn.text(), "cudnn: forward 1 of 3 steps, 2 mma: a KV group spans ranks")) << torn.text();
  const Planned none(1, 2, [](AttentionRequest& r) { r.score.softcap = 30; });
  EXPECT_EQ(none.result.notes,
            (std::vector<std::string>{"backend cudnn: every step goes to the mma kernel: the cuDNN backend "
                                      "does not support softcap; plan with --backend mma",
                                      "logits with softcap are computed by mma, whose kernels the "
                                      "calibration did not measure: attention takes longer than its price"}));
  const Planned backward(1, 2, [](AttentionRequest& r) { r.shape.head_dim_qk = 96; });
  EXPECT_EQ(backward.result.notes,
            std::vector<std::string>{"backend cudnn: every backward step goes to the mma kernel: cuDNN's "
                                     "backward supports unequal head dims 192/128 only"});
  const Planned wide(32, 4, [](AttentionRequest& r) { r.score.alibi = true; });
  EXPECT_FALSE(wide.result.forward_steps.has_value()) << "too many ranks to expand";
  ASSERT_EQ(wide.result.notes.size(), 2U);
  EXPECT_TRUE(has(wide.result.notes[1], "logits with ALiBi")) << wide.result.notes[1];
  const Planned host(1, 2, [](AttentionRequest& r) { r.backend = Backend::cpu; });
  EXPECT_TRUE(has(host.text(), "backend   cpu\n")) << host.text();
}

TEST(StepBackends, PlanFilesKeepTheCountAndItIsDerivedAgain) {
  const Planned torn(1, 3, [](AttentionRequest&) {});
  PlanFile plan = torn.file();
  const schedule::StepBackends expected{
      {{Backend::cudnn, 1}, {Backend::mma, 2}}, 0, {schedule::UnsupportedReason::kv_group_spans_ranks}};
  EXPECT_EQ(plan.layers.front().forward.steps, expected);
  EXPECT_EQ(read_plan(write_plan(plan), "plan").layers.front().forward.steps, expected);
  EXPECT_NO_THROW(check_predictions(plan, "plan"));
  const auto refused_at = [](const PlanFile& changed) -> std::string {
    try {
      check_predictions(read_plan(write_plan(changed), "plan"), "plan");
    } catch (const InvalidInput& error) {
      return error.where().token;
    }
    return "";
  };
  PlanFile changed = plan;
  changed.layers.front().backward.steps->why = {schedule::UnsupportedReason::softcap};
  EXPECT_EQ(refused_at(changed), "/layers/0/prediction/backward/steps");
  for (const schedule::UnsupportedReason of_a_run :
       {schedule::UnsupportedReason::none, schedule::UnsupportedReason::alignment,
        schedule::UnsupportedReason::no_graph}) {
    changed.layers.front().backward.steps->why = {of_a_run};
    EXPECT_EQ(refused_at(changed), "/layers/0/prediction/backward/steps/why/0") << word_of(of_a_run);
  }
  changed = plan;
  changed.layers.front().forward.steps.reset();
  EXPECT_EQ(refused_at(changed), "/layers/0/prediction/forward/steps");
  changed = plan;
  ++changed.layers.front().forward.sent_bytes;
  EXPECT_EQ(refused_at(changed), "/layers/0/prediction/forward/sent_bytes");
  changed = plan;
  changed.layers.front().forward.steps->add(Backend::cpu, 1);
  EXPECT_EQ(refused_at(changed), "/layers/0/prediction/forward/steps/cpu");
  changed = plan;
  changed.layers.front().forward.steps->mixed = 2;
  EXPECT_EQ(refused_at(changed), "/layers/0/prediction/forward/steps/mixed");
}

TEST(StepBackends, ExplainNamesThemWithTheirReasons) {
  const Planned torn(1, 3, [](AttentionRequest&) {});
  ExplainRequest request;
  request.rank = 0;
  const std::string text = explain_text(torn.file(), request);
  EXPECT_TRUE(has(text, "by mma: a KV group spans ranks, which the cuDNN backend does not support\n"))
      << text;
  EXPECT_TRUE(has(text, "  backend cudnn: forward 1 of 3 steps, 2 mma; backward 1 of 3 steps")) << text;
  request.rank = 2;
  request.pass = Pass::backward;
  EXPECT_TRUE(has(explain_text(torn.file(), request), "by cudnn: one triangle of 2048 x 2048\n"));
  const Json json = parse_json(explain_json(torn.file(), request), "explain");
  int grads = 0;
  for (const Json& tick : json.at("schedule").at("ticks"))
    for (const Json& step : tick.at("steps")) {
      if (step.at("kind") != "attend_grad") continue;
      ++grads;
      EXPECT_EQ(step.at("backend"), "cudnn");
      EXPECT_EQ(step.at("reason"), "one triangle of 2048 x 2048");
      EXPECT_EQ(step.at("slices_to_mma"), 0);
    }
  EXPECT_EQ(grads, 1);
}

}  // namespace
}  // namespace usp
