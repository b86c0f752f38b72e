// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/whatif.hpp"

#include "usp/base/error.hpp"
#include "usp/planner/model_config.hpp"
#include "usp/topology/compose.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace usp {
namespace {

topology::Cluster hosts(int count) {
  topology::ClusterRequest source;
  source.source = "dgx-h100";
  source.nodes = count;
  return topology::compose(source);
}

struct Setting {
  topology::Cluster cluster = hosts(2);
  Calibration calibration = load_calibration("h100_sxm");
  Model model = load_model("llama-3.1-8b");
  WhatIfRequest request;
  Setting() {
    request.base.cluster = &cluster;
    request.base.calibration = &calibration;
    request.base.model = &model;
    request.base.workload.seq = 1 << 18;
  }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;
};

std::vector<AxisValue> values_of(const WhatIfResult& result, const WhatIfPoint& point) {
  std::vector<AxisValue> values;
  for (std::size_t i = 0; i < result.axes.size(); ++i) values.push_back(result.axes[i].values[point.at[i]]);
  return values;
}

TEST(WhatIfAxes, RangesListsAndUnits) {
  const Axis seq = parse_axis("seq=128k:4m:x2");
  ASSERT_EQ(seq.values.size(), 6U);
  EXPECT_EQ(seq.values.front().number, 131072);
  EXPECT_EQ(seq.values.back().text, "4M");
  const Axis nic = parse_axis("nic=25,400G,100");
  ASSERT_EQ(nic.values.size(), 3U);
  EXPECT_EQ(nic.values[1].number, 50);
  EXPECT_EQ(nic.values[1].text, "50 GB/s");
  EXPECT_EQ(parse_axis("memory=40GB:80GB:+20GB").values.size(), 3U);
  EXPECT_EQ(parse_axis("layout=zigzag,striped").values[1].text, "striped");
  EXPECT_EQ(parse_axis("kv-heads=2").kind, AxisKind::kv_heads);
}

TEST(WhatIfAxes, BadOnesAreRefused) {
  for (const char* text : {"seq", "sec=1k", "seq=", "seq=1k:2k", "seq=4k:1k:x2", "seq=1k:4k:x1",
                           "seq=1k:4k:+0", "nic=abc", "nic=0", "layout=zigzag:striped:x2", "layout=zigzg",
                           "zero=4", "seq=2k,1k", "seq=1:100000:+1", "seq=1k:2k:y2"})
    EXPECT_THROW(static_cast<void>(parse_axis(text)), UsageError) << text;
  EXPECT_EQ(parse_axis("seq=1k").values.size(), 1U);
  // Steps that round to the value before, or vanish beside it, do not run for ever; many lists are too many.
  std::string ranges = "heads=1:9000:+1";
  for (int i = 0; i < 100; ++i) ranges += ",1:9000:+1";
  for (const std::string& text : {std::string("seq=1:1M:x1.0000000001"),
                                  std::string("nic=100000000000000:900000000000000:+0.001"), ranges})
    EXPECT_THROW(static_cast<void>(parse_axis(text)), UsageError);
}

TEST(WhatIf, EveryPointEqualsAWholeSearch) {
  Setting s;
  s.request.axes = {parse_axis("seq=128k:640k:+32k"), parse_axis("nic=10:90:+10")};
  s.request.break_evens = false;
  const WhatIfResult result = what_if(s.request);
  ASSERT_EQ(result.points.size(), 17U * 9U);
  EXPECT_GT(result.repriced, 0);
  EXPECT_LT(result.searches, static_cast<i64>(result.points.size()));
  for (const WhatIfPoint& point : result.points) {
    const PointPlan whole = plan_at(s.request.base, result.axes, values_of(result, point));
    ASSERT_EQ(point.plan.feasible, whole.feasible);
    if (!whole.feasible) continue;
    EXPECT_EQ(describe(point.plan.choice), describe(whole.choice));
    EXPECT_DOUBLE_EQ(point.plan.step_s, whole.step_s);
    EXPECT_EQ(point.plan.memory_bytes, whole.memory_bytes);
  }
}

TEST(WhatIf, TheBaseAsAPointIsTheBase) {
  Setting s;
  s.request.axes = {parse_axis("seq=128k:512k:x2")};
  s.request.break_evens = false;
  const WhatIfResult result = what_if(s.request);
  EXPECT_EQ(describe(result.points[1].plan.choice), describe(result.base.choice));
  EXPECT_DOUBLE_EQ(result.points[1].plan.step_s, result.base.step_s);
}

TEST(WhatIf, DeltasAreDifferencesOfDirectPlans) {
  Setting s;
  s.request.axes = {parse_axis("seq=512k")};
  s.request.break_evens = false;
  const WhatIfResult result = what_if(s.request);
  const PlanResult base = plan_step(s.request.base);
  PlanRequest longer = s.request.base;
  longer.workload.seq = 1 << 19;
  const PlanResult point = plan_step(longer);
  double sum = 0;
  for (const TermDelta& delta : term_deltas(result.base, result.points.front().plan)) {
    double expected = 0;
    for (const TimeTerm& term : point.best().terms) expected += term.name == delta.name ? term.seconds : 0;
    for (const TimeTerm& term : base.best().terms) expected -= term.name == delta.name ? term.seconds : 0;
    EXPECT_DOUBLE_EQ(delta.delta_s(), expected) << delta.name;
    sum += delta.delta_s();
  }
  EXPECT_NEAR(sum, point.best().step_s - base.best().step_s, 1e-9 * point.best().step_s);
  EXPECT_GT(sum, 0);
}

TEST(WhatIf, BreakEvensHoldOnBothSides) {
  Setting s;
  s.request.axes = {parse_axis("seq=32k:4m:x2"), parse_axis("memory=40GB:80GB:+8GB")};
  const WhatIfResult result = what_if(s.request);
  ASSERT_FALSE(result.break_evens.empty());
  const double kernel_error = s.request.base.calibration->kernel.mean_error();
  for (const BreakEven& even : result.break_evens) {
    EXPECT_TRUE(even.verified) << even.axis << " " << even.below.text;
    const Axis& axis = result.axes[even.axis == "seq" ? 0 : 1];
    const PointPlan below = plan_at(s.request.base, {axis}, {even.below});
    const PointPlan above = plan_at(s.request.base, {axis}, {even.above});
    // What leads: the best plan, or one that ties with it.
    const auto leads = [&](const PointPlan& plan, const PointPlan& best) {
      return plan.feasible == best.feasible &&
             (!plan.feasible || same_lead(plan.choice, best.choice) || tied(best, plan, kernel_error));
    };
    EXPECT_TRUE(leads(even.from, below) && leads(even.to, above)) << even.axis << " " << even.below.text;
    const bool same = even.from.feasible && even.to.feasible && same_lead(even.from.choice, even.to.choice) &&
                      even.from.choice.recompute == even.to.choice.recompute &&
                      even.from.choice.offload == even.to.choice.offload &&
                      even.from.choice.zero_stage == even.to.choice.zero_stage;
    EXPECT_FALSE(same) << even.axis << " " << even.below.text;
    EXPECT_LT(even.below.number, even.above.number);
    EXPECT_LT(even.above.number / even.below.number, 1.01);
  }
}

/// Along an axis each change begins where the one before it ended.
TEST(WhatIf, BreakEvensJoin) {
  Setting s;
  s.request.axes = {parse_axis("seq=32k:4m:x2")};
  const WhatIfResult result = what_if(s.request);
  ASSERT_GT(result.break_evens.size(), 1U);
  for (std::size_t i = 1; i < result.break_evens.size(); ++i) {
    const PointPlan &ended = result.break_evens[i - 1].to, &begins = result.break_evens[i].from;
    EXPECT_LE(result.break_evens[i - 1].above.number, result.break_evens[i].below.number);
    ASSERT_EQ(ended.feasible, begins.feasible);
    if (!ended.feasible) continue;
    EXPECT_TRUE(same_lead(ended.choice, begins.choice))
        << describe(ended.choice) << " / " << describe(begins.choice);
    EXPECT_EQ(ended.choice.recompute, begins.choice.recompute);
  }
}

/// A layout that leads by less than the bands is no change; the lead of a point where the former layout no
/// longer fits, or loses by more, is one.
TEST(WhatIf, TiesAreNoChanges) {
  Setting s;
  s.request.axes = {parse_axis("nic=25:100:+5")};
  s.request.break_evens = false;
  const WhatIfResult result = what_if(s.request);
  const double kernel_error = s.request.base.calibration->kernel.mean_error();
  std::size_t shifts = 0;
  for (std::size_t i = 1; i < result.points.size(); ++i) {
    const PointPlan &before = result.points[i - 1].plan, &here = result.points[i].plan;
    if (same_lead(before.choice, here.choice)) continue;
    ++shifts;
    if (here.tie && tied(before, here, kernel_error)) {
      EXPECT_FALSE(result.points[i].lead_changed);
    }
  }
  for (const WhatIfPoint& point : result.points) EXPECT_LE(point.lead_changed ? 1U : 0U, shifts);
}

TEST(WhatIf, PointsThatDoNotFitSayByHowMuch) {
  Setting s;
  s.request.axes = {parse_axis("memory=4GB,80GB")};
  s.request.break_evens = false;
  const WhatIfResult result = what_if(s.request);
  const PointPlan& small = result.points.front().plan;
  ASSERT_FALSE(small.feasible);
  EXPECT_GT(small.short_bytes, 0);
  EXPECT_DOUBLE_EQ(static_cast<double>(small.memory_bytes) - small.short_bytes, 4e9);
  EXPECT_TRUE(result.points.back().lead_changed) << "from nothing to something";
  EXPECT_NE(whatif_text(result, true).find(" too much"), std::string::npos);
  const std::string csv = whatif_csv(result);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 3);
}

/// Both sides of a break-even are printed in one notation.
TEST(WhatIf, BreakEvensDoNotMixNotations) {
  WhatIfResult result;
  result.axes = {parse_axis("seq=128k,256k")};
  const auto printed = [&](double below, double above) {
    BreakEven even;
    even.axis = "seq";
    even.below = axis_value(AxisKind::seq, below);
    even.above = axis_value(AxisKind::seq, above);
    result.break_evens = {even};
    return whatif_text(result);
  };
  EXPECT_NE(printed(182208, 182272).find("seq between 182208 and 182272:"), std::string::npos);
  EXPECT_NE(printed(178 << 10, 179 << 10).find("seq between 178K and 179K:"), std::string::npos);
}

TEST(WhatIf, LongestSequenceFitsAndTheNextDoesNot) {
  Setting s;
  const WhatIfResult result = what_if(s.request);
  ASSERT_TRUE(result.longest.has_value());
  ASSERT_TRUE(result.longest->bounded);
  PlanRequest at = s.request.base;
  at.workload.seq = result.longest->seq;
  EXPECT_TRUE(plan_step(at).feasible());
  at.workload.seq += at.workload.seq / 100 / 64 * 64;
  EXPECT_THROW(static_cast<void>(plan_step(at)), Infeasible);
  EXPECT_FALSE(result.longest->binding_row.empty());
  EXPECT_LE(static_cast<double>(result.longest->total_bytes), result.longest->device_bytes);
}

TEST(WhatIf, MachineAndModelAxes) {
  Setting s;
  s.request.break_evens = false;
  s.request.axes = {parse_axis("gpus=8,16,32")};
  const WhatIfResult sizes = what_if(s.request);
  for (std::size_t i = 0; i < 3; ++i) {
    const topology::Cluster direct = hosts(1 << i);
    PlanRequest same = s.request.base;
    same.cluster = &direct;
    EXPECT_DOUBLE_EQ(sizes.points[i].plan.step_s, plan_step(same).best().step_s) << i;
  }
  s.request.axes = {parse_axis("nvlink=225,450,900")};
  const WhatIfResult links = what_if(s.request);
  EXPECT_GE(links.points[0].plan.step_s, links.points[1].plan.step_s);
  EXPECT_GE(links.points[1].plan.step_s, links.points[2].plan.step_s);
  EXPECT_GT(links.points[0].plan.step_s, links.points[2].plan.step_s);
  EXPECT_DOUBLE_EQ(links.points[1].plan.step_s, links.base.step_s);
  s.request.axes = {parse_axis("kv_heads=3,8")};
  const WhatIfResult heads = what_if(s.request);
  EXPECT_FALSE(heads.points[0].plan.feasible);
  EXPECT_NE(heads.points[0].plan.why.find("kv_heads 3"), std::string::npos);
  EXPECT_DOUBLE_EQ(heads.points[1].plan.step_s, heads.base.step_s);
}

TEST(WhatIf, FixedDegreesGiveReasons) {
  Setting s;
  s.request.break_evens = false;
  s.request.axes = {parse_axis("ring=1,2,3"), parse_axis("ulysses=4")};
  const WhatIfResult result = what_if(s.request);
  EXPECT_EQ(result.points[1].plan.choice.mesh.ring(), 2);
  EXPECT_EQ(result.points[1].plan.choice.mesh.ulysses, 4);
  EXPECT_FALSE(result.points[2].plan.feasible);
  EXPECT_FALSE(result.points[2].plan.why.empty());
  s.request.axes = {parse_axis("seq=1k"), parse_axis("seq=2k")};
  EXPECT_THROW(static_cast<void>(what_if(s.request)), UsageError);
}

}  // namespace
}  // namespace usp
