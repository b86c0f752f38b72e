// SPDX-License-Identifier: Apache-2.0
// No guess decides silently: every unmeasured input is varied over its range on every preset, and
// the answer is the same plan, or a tie that names the input.
#include "../../planner/src/search/doubts.hpp"

#include "usp/base/presets.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/plan_attention.hpp"
#include "usp/topology/compose.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace usp {
namespace {

struct Call {
  AttentionShape shape;
  bool training = true;
};

Call random_call(std::mt19937_64& random) {
  const auto pick = [&](std::initializer_list<int> of) {
    return *(of.begin() + std::uniform_int_distribution<std::ptrdiff_t>(
                              0, static_cast<std::ptrdiff_t>(of.size()) - 1)(random));
  };
  Call call;
  const i64 tokens = i64{1024} << pick({2, 3, 4, 5, 6, 7, 8, 9});
  const int heads = pick({8, 16, 24, 32, 40, 64}), group = pick({1, 1, 4, 8});
  const int head_dim = pick({64, 128});
  call.shape = {1,        tokens,   tokens,     heads, heads % group == 0 ? heads / group : heads,
                head_dim, head_dim, DType::bf16};
  call.training = pick({0, 1}) == 1;
  return call;
}

AttentionResult plan(const topology::Cluster& cluster, const Calibration& calibration, const Call& call) {
  AttentionRequest request;
  request.cluster = &cluster;
  request.calibration = &calibration;
  request.shape = call.shape;
  request.documents = Documents::single(call.shape.q_tokens, call.shape.kv_tokens);
  request.training = call.training;
  return plan_attention(request);
}

bool same(const AttentionCandidate& a, const AttentionCandidate& b) {
  return a.plan.mesh.ring() == b.plan.mesh.ring() && a.plan.mesh.ulysses == b.plan.mesh.ulysses &&
         a.plan.method == b.plan.method;
}

/// Lets the first of a plan differ from that of another search by what no one can measure.
bool first_differs(const AttentionResult& varied, const AttentionCandidate& best) {
  if (same(varied.best(), best)) return false;
  double own = 1e300;
  for (const AttentionCandidate& c : varied.candidates)
    if (same(c, best)) own = std::min(own, c.seconds());
  return own > varied.best().seconds() * (1 + 3 * same_time);
}

void expect_runnable(const std::string& command, int devices_of_host) {
  if (command == "usp bench plan.json --gpu --repeat 20") return;
  EXPECT_THAT(command, testing::MatchesRegex(
                           "(mpirun -n [0-9]+ (--map-by node )?)?(alltoall|all_gather|sendrecv)_perf "
                           "-b 1M -e [0-9]+M -f 2 -g [0-9]+"));
  const int per_process = std::stoi(command.substr(command.rfind(' ') + 1));
  EXPECT_EQ(command.starts_with("mpirun"), per_process == 1) << command;
  EXPECT_LE(per_process, devices_of_host) << command;
}

TEST(Guesses, NoneDecidesSilently) {
  constexpr int calls = 3;  // 200 take minutes
  std::mt19937_64 random(17);
  int named = 0, varied_plans = 0;
  for (const std::string& name : preset_names("clusters")) {
    topology::ClusterRequest request;
    request.source = name;
    const topology::Cluster one = topology::compose(request);
    if (one.calibration.empty() || one.devices.size() > 16) continue;
    for (int i = 0; i < calls; ++i) {
      request.nodes = i % 3 == 2 && !one.nics.empty() ? 2 : 1;
      const topology::Cluster cluster = topology::compose(request);
      const Calibration calibration = calibration_of(cluster);
      const Call call = random_call(random);
      const AttentionResult result = plan(cluster, calibration, call);
      const std::string label = name + " x " + std::to_string(cluster.nodes.size()) + " " +
                                std::to_string(call.shape.q_tokens) + " heads " +
                                std::to_string(call.shape.query_heads);
      EXPECT_TRUE(result.guesses.empty() || result.tie) << label;
      for (const std::string& command : result.tie_breaking_measurements)
        expect_runnable(command, node_size(cluster));
      if (!result.guesses.empty()) {
        EXPECT_EQ(result.tie_breaking_measurements.front(), result.guesses.front().measurement) << label;
      }
      for (const Doubt& doubt : doubts_of(cluster, calibration)) {
        const bool says = std::any_of(result.guesses.begin(), result.guesses.end(),
                                      [&](const GuessedInput& g) { return g.input == doubt.input; });
        named += says ? 1 : 0;
        if (says) continue;
        for (const double factor : {doubt.low, doubt.high}) {
          topology::Cluster other = cluster;
          Calibration rates = calibration;
          doubt.scale(other, rates, factor);
          const AttentionResult varied = plan(other, rates, call);
          ++varied_plans;
          EXPECT_FALSE(first_differs(varied, result.best()))
              << label << ": " << doubt.input << " x " << factor << " puts " << describe(varied.best())
              << " before " << describe(result.best());
        }
      }
    }
  }
  EXPECT_GT(named, 5);
  EXPECT_GT(varied_plans, 20);
}

TEST(Guesses, MeasurementsAreOfTheMachine) {
  const Mesh ring{1, 8, 1}, ulysses{1, 1, 8};
  const auto kernels = [&](const topology::Cluster& cluster) {
    return measurement_of(Doubt::Of::kernels, cluster, DType::bf16, ring, ulysses);
  };
  EXPECT_EQ(kernels(topology::compose({.source = "dgx-h100"})), "usp bench plan.json --gpu --repeat 20");
  EXPECT_NE(kernels(topology::compose({.source = "mi300x"})).find("no kernels of usp run there"),
            std::string::npos);
  const topology::Cluster threads = thread_cluster(4);
  for (const Doubt::Of of : {Doubt::Of::kernels, Doubt::Of::links, Doubt::Of::sockets})
    EXPECT_EQ(measurement_of(of, threads, DType::fp32, ring, ulysses),
              host_measurement(threads, DType::fp32));
  AttentionPlan plan;
  plan.shape.dtype = DType::fp32;
  plan.mesh = {1, 2, 2};
  EXPECT_EQ(exchange_measurements(threads, plan, {}),
            std::vector<std::string>{host_measurement(threads, DType::fp32)});
  EXPECT_EQ(exchange_measurements(topology::compose({.source = "dgx-h100"}), plan, {}).size(), 2U);
}

TEST(Guesses, HostsAreMeasuredWithTheTypeAndTheFilesOfTheCall) {
  topology::Cluster cluster;
  cluster.nodes.resize(1);
  cluster.devices.resize(4);
  EXPECT_EQ(
      host_measurement(cluster, DType::bf16),
      "usp calibrate --ranks 4 --dtype bf16 --restart -o calibration.json --write-cluster cluster.json");
  cluster.nodes.resize(2);
  cluster.calibration = "runs/hosts.json";
  EXPECT_EQ(host_measurement(cluster, DType::fp32),
            "mpirun -n 4 usp calibrate --dtype fp32 --restart -o runs/hosts.json --write-cluster "
            "runs/cluster.json");
}

}  // namespace
}  // namespace usp
