// SPDX-License-Identifier: Apache-2.0
// Terms of a step that cross NICs, and the memory of the communicators that carry them.
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/model_config.hpp"
#include "usp/planner/plan.hpp"
#include "usp/topology/compose.hpp"

#include <gtest/gtest.h>

#include <string>

namespace usp {
namespace {

constexpr const char* dgx2 = "node:2 nvswitch gpu:8(h100-sxm) nic:8(400G) fabric:rail";
constexpr const char* dgx4 = "node:4 nvswitch gpu:8(h100-sxm) nic:8(400G) fabric:rail";

struct Step {
  topology::Cluster cluster;
  Calibration calibration;
  Model model;
  PlanRequest request;
  Choice choice;

  Step(const char* preset, const char* machine)
      : cluster(topology::compose({.source = machine})),
        calibration(calibration_of(cluster)),
        model(load_model(preset)) {
    request.cluster = &cluster;
    request.calibration = &calibration;
    request.model = &model;
    request.workload.seq = 8192;
    choice.layout = LayoutKind::contiguous;
  }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  [[nodiscard]] PlanCandidate price() const { return price_choice(request, choice); }
  [[nodiscard]] double seconds(const std::string& name) const {
    for (const PlanCandidate candidate = price(); const TimeTerm& term : candidate.terms)
      if (term.name == name) return term.seconds;
    return 0;
  }
  [[nodiscard]] i64 communicator_mib() const {
    return price().memory.bytes_of(MemoryKind::communicators) >> 20;
  }
};

Efficiency measured(double share) {
  return {share, share * 0.95, share * 1.05, "a test", true};
}

TEST(StepLinks, MeasuredSharesOfTheLineReachEveryTerm) {
  Step experts("qwen3-30b-a3b", dgx4);
  experts.choice.placement.data = 32;
  experts.choice.zero_stage = 1;
  experts.request.workload.expert = 32;
  experts.calibration.network.exchange = measured(0.8);
  const double fast = experts.seconds("expert exchange");
  experts.calibration.network.exchange = measured(0.4);
  EXPECT_NEAR(experts.seconds("expert exchange") / fast, 2, 0.1);  // but the latency

  Step states("llama-3.1-70b", dgx4);
  states.choice.placement.data = 32;
  states.choice.zero_stage = 3;
  states.calibration.network.gather = states.calibration.network.reduce_scatter = measured(8 * 0.8);
  const double fast_step = states.price().step_s;
  states.calibration.network.gather = states.calibration.network.reduce_scatter = measured(8 * 0.1);
  EXPECT_GT(states.price().step_s, 1.1 * fast_step);

  Step pipeline("llama-3.1-8b", dgx4);
  pipeline.choice.placement.data = 8;
  pipeline.request.workload.pipeline = 4;
  pipeline.request.workload.microbatches = pipeline.request.workload.batch = 4;
  pipeline.calibration.network.hop = measured(0.9);
  const double near = pipeline.seconds("pipeline transfers");
  pipeline.calibration.network.hop = measured(0.45);
  EXPECT_NEAR(pipeline.seconds("pipeline transfers") / near, 2, 0.1);
}

TEST(StepLinks, WhatWasMeasuredIsNoExtrapolation) {
  Step step("llama-3.1-8b", "node:2 nvswitch gpu:8(h100-sxm) nic:1(400G) fabric:rail");
  step.choice.placement.data = 16;
  step.choice.zero_stage = 1;
  constexpr std::uint32_t guessed = bits(Extrapolation::inter_node);
  EXPECT_NE(step.price().extrapolation & guessed, 0U);
  step.calibration.network.gather = step.calibration.network.reduce_scatter = measured(8 * 0.8);
  EXPECT_EQ(step.price().extrapolation & guessed, 0U);
}

TEST(StepLinks, CommunicatorsGrowWithGroupsAndTransport) {
  constexpr i64 set = 384;
  EXPECT_EQ(Step("llama-3.2-1b", "gpu:1(h100-sxm)").communicator_mib(), 0);
  Step one("llama-3.2-1b", "dgx-h100");
  one.choice.mesh.ulysses = 8;
  EXPECT_EQ(one.communicator_mib(), set);  // of gradients: copy engines carry the exchange
  one.request.execution.transport = Transport::nccl;
  EXPECT_EQ(one.communicator_mib(), (1 + 7) * set);
  one.choice.mesh = {1, 8, 1};
  EXPECT_EQ(one.communicator_mib(), (1 + 1) * set);
  one.request.workload.training = false;
  one.choice.zero_stage = 0;
  EXPECT_EQ(one.communicator_mib(), set);
  one.request.execution.transport = Transport::copy_engine;
  EXPECT_EQ(one.communicator_mib(), 0);

  Step two("llama-3.2-1b", dgx2);
  two.choice.mesh = {1, 2, 4};
  two.choice.placement.tensor = 2;
  EXPECT_EQ(two.communicator_mib(), 3 * set);  // ring over NICs, tensor, data x sequence
}

}  // namespace
}  // namespace usp
