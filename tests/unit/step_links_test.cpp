// SPDX-License-Identifier: Apache-2.0
// Terms of a step that cross NICs, and the memory of the communicators that carry them.
#include "step_case.hpp"

#include <gtest/gtest.h>

#include <string>

namespace usp {
namespace {

constexpr const char* host = "nvswitch gpu:8(h100-sxm) nic:8(400G) fabric:rail";
constexpr const char* thin_host = "nvswitch gpu:8(h100-sxm) nic:1(400G) fabric:rail";

/// A layout without tensor parallelism.
Choice layout(int data, int zero_stage, Mesh mesh = {}) {
  Choice choice;
  choice.placement.data = data;
  choice.layout = LayoutKind::contiguous;
  choice.zero_stage = zero_stage;
  choice.mesh = mesh;
  return choice;
}

double seconds(const Step& step, const Choice& choice, const std::string& name) {
  return seconds(price_choice(step.request, choice), name);
}

i64 communicator_mib(const Step& step, const Choice& choice) {
  return price_choice(step.request, choice).memory.bytes_of(MemoryKind::communicators) >> 20;
}

Efficiency measured(double share) {
  return {share, share * 0.95, share * 1.05, "a test", true};
}

TEST(StepLinks, MeasuredSharesOfTheLineReachEveryTerm) {
  Step experts("qwen3-30b-a3b", 4, host);
  const Choice whole = layout(32, 1);
  experts.request.workload.expert = 32;
  experts.calibration.network.exchange = measured(0.8);
  const double fast = seconds(experts, whole, "expert exchange");
  experts.calibration.network.exchange = measured(0.4);
  EXPECT_NEAR(seconds(experts, whole, "expert exchange") / fast, 2, 0.1);  // but the latency

  Step states("llama-3.1-70b", 4, host);
  const Choice gathered = layout(32, 3);
  const auto share = [&](double value) {
    states.calibration.network.gather = states.calibration.network.reduce_scatter = measured(8 * value);
    return price_choice(states.request, gathered).step_s;
  };
  EXPECT_GT(share(0.1), 1.1 * share(0.8));

  Step pipeline("llama-3.1-8b", 4, host);
  const Choice staged = layout(8, 1);
  pipeline.request.workload.pipeline = 4;
  pipeline.request.workload.microbatches = pipeline.request.workload.batch = 4;
  pipeline.calibration.network.hop = measured(0.9);
  const double near = seconds(pipeline, staged, "pipeline transfers");
  pipeline.calibration.network.hop = measured(0.45);
  EXPECT_NEAR(seconds(pipeline, staged, "pipeline transfers") / near, 2, 0.1);
}

TEST(StepLinks, WhatWasMeasuredIsNoExtrapolation) {
  Step step("llama-3.1-8b", 2, thin_host);
  const Choice choice = layout(16, 1);
  constexpr std::uint32_t guessed = bits(Extrapolation::inter_node);
  EXPECT_NE(price_choice(step.request, choice).extrapolation & guessed, 0U);
  step.calibration.network.gather = step.calibration.network.reduce_scatter = measured(8 * 0.8);
  EXPECT_EQ(price_choice(step.request, choice).extrapolation & guessed, 0U);
}

TEST(StepLinks, CommunicatorsGrowWithGroupsAndTransport) {
  constexpr i64 set = 384;
  EXPECT_EQ(communicator_mib(Step("llama-3.2-1b", 1, "gpu:1(h100-sxm)"), layout(1, 0)), 0);
  Step one("llama-3.2-1b", 1, host);
  const Choice ulysses = layout(1, 1, {1, 1, 8}), ring = layout(1, 1, {1, 8, 1});
  EXPECT_EQ(communicator_mib(one, ulysses), set);  // of gradients: copy engines carry the exchange
  one.request.execution.transport = Transport::nccl;
  EXPECT_EQ(communicator_mib(one, ulysses), (1 + 7) * set);
  EXPECT_EQ(communicator_mib(one, ring), (1 + 3) * set);  // on, back and home
  one.request.workload.training = false;
  EXPECT_EQ(communicator_mib(one, layout(1, 0, {1, 1, 8})), 7 * set);
  one.request.execution.transport = Transport::copy_engine;
  EXPECT_EQ(communicator_mib(one, layout(1, 0, {1, 1, 8})), 0);

  const Step two("llama-3.2-1b", 2, host);
  Choice mixed = layout(1, 1, {1, 2, 4});
  mixed.placement.tensor = 2;
  EXPECT_EQ(communicator_mib(two, mixed), 3 * set);  // ring over NICs, tensor, data x sequence
}

}  // namespace
}  // namespace usp
