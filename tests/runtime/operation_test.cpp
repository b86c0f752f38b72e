// SPDX-License-Identifier: Apache-2.0
// An operation that only this test knows is expanded, priced, run, traced and interpreted by its record.
#include "pass_runner.hpp"
#include "schedule_trial.hpp"

#include "usp/kernels/backends.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/plan_attention.hpp"
#include "usp/planner/pricing.hpp"
#include "usp/runtime/trace.hpp"

#include <gtest/gtest.h>

namespace usp::test {
namespace {

constexpr schedule::Operand halve_operands[] = {{Tensor::o, &schedule::ComputeOp::o}, {Tensor::lse}};
const schedule::Operation halve = {.word = "halve",
                                   .operands = halve_operands,
                                   .operand_count = 2,
                                   .cost = {schedule::OperationCost::Kernel::row_sums, 3}};

/// A forward pass that halves o after the last attention.
struct Halved {
  AttentionPlan plan;
  Documents documents = Documents::single(24, 24);
  schedule::TokenMap geometry;
  schedule::CompactSchedule compact;

  explicit Halved(const Mesh& mesh) : plan(plan_on(mesh)), geometry(plan, documents) {
    schedule::generate(plan, geometry.heads().shared_kv(), compact);
    schedule::ComputeOp work = compact.forward.work.back();
    work.operation = &halve;
    compact.forward.work.push_back(work);
  }
  [[nodiscard]] schedule::RankSchedule schedule(int rank) const {
    return schedule::expand(geometry, compact, rank, Pass::forward);
  }
  [[nodiscard]] std::size_t last_tick() const {
    return static_cast<std::size_t>(compact.forward.work.back().tick);
  }

 private:
  static AttentionPlan plan_on(const Mesh& mesh) {
    AttentionPlan plan;
    plan.shape = {1, 24, 24, 4, 2, 3, 3, DType::fp64};
    plan.mesh = mesh;
    plan.band = {0, unbounded};
    return plan;
  }
};

const schedule::Step& last_step(const schedule::RankSchedule& schedule) {
  return schedule.steps.back();
}

TEST(Operation, IsExpandedToItsOperands) {
  const Halved call({1, 2, 2});
  for (int rank = 0; rank < 4; ++rank) {
    const schedule::RankSchedule schedule = call.schedule(rank);
    const schedule::Step& step = last_step(schedule);
    ASSERT_TRUE(step.is(halve));
    for (std::size_t i = 0; i < tensor_count; ++i) {
      const auto tensor = static_cast<Tensor>(i);
      const bool operand = tensor == Tensor::o || tensor == Tensor::lse;
      ASSERT_EQ(step[tensor] >= 0, operand);
      if (!operand) continue;
      EXPECT_EQ(schedule.buffers[static_cast<std::size_t>(step[tensor])].name.tensor, tensor);
    }
    EXPECT_EQ(step.query_heads.size(), 2);
    EXPECT_EQ(step.slices.count, 0);
  }
}

TEST(Operation, IsPricedByItsCost) {
  const Halved call({1, 2, 2});
  const topology::Cluster cluster = thread_cluster(4);
  const Calibration calibration = uncalibrated(data_sheet_of(cluster));
  LinkPricer links(cluster, calibration);
  AttentionPricer pricer(links, call.plan.shape, call.documents, {});
  std::vector<schedule::RankSchedule> ranks, plain;
  schedule::CompactSchedule compact;
  schedule::generate(call.plan, call.geometry.heads().shared_kv(), compact);
  for (int rank = 0; rank < 4; ++rank) {
    ranks.push_back(call.schedule(rank));
    plain.push_back(schedule::expand(call.geometry, compact, rank, Pass::forward));
  }
  const double more = pricer.price_explicit(call.plan, {}, ranks).compute_s -
                      pricer.price_explicit(call.plan, {}, plain).compute_s;
  const i64 rows_heads = 12 * 2;  // of a rank
  const double expected =
      3 * calibration.kernel.prepare_backward(static_cast<double>(rows_heads), 3, 8).seconds;
  EXPECT_NEAR(more, expected, 1e-9 * expected);
}

TEST(Operation, IsTracedByItsWord) {
  const Halved call({1, 2, 2});
  const std::vector<std::string_view> expected{"attend", "halve"};
  EXPECT_EQ(traced_steps(call.schedule(3), call.last_tick()), expected);
}

Problem random_problem() {
  std::mt19937_64 random(3);
  return {noise(random, 1, 24, 4, 3), noise(random, 1, 24, 2, 3), noise(random, 1, 24, 2, 3), {}, 0.7};
}

Array halved_truth(const Halved& call, const Problem& problem) {
  Array o = dense(call.plan, call.documents, problem, Array(1, 24, 4, 3, 0)).o;
  for (double& x : o.data) x /= 2;
  return o;
}

TEST(Operation, IsInterpreted) {
  const Halved call({1, 2, 2});
  const Problem problem = random_problem();
  std::vector<RankState> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back(call.geometry, call.compact, rank);
    ranks.back().teach(halve, [](RankState& state, const schedule::Step& step) {
      Array& o = state.array(step[Tensor::o]);
      for (i64 row = 0; row < o.rows; ++row)
        for (i64 head = step.query_heads.begin; head < step.query_heads.end; ++head)
          for (i64 w = 0; w < o.width; ++w) o.at(0, row, head - state.first_head(step[Tensor::o]), w) /= 2;
    });
  }
  run_pass(ranks, Pass::forward, problem, std::vector<Array>(4));
  for (const RankState& rank : ranks)
    EXPECT_LT(worst(rank, Tensor::o, BufferSlot::home, halved_truth(call, problem)), 1e-12);
}

void halve_on_host(kernels::AttentionKernel& /*kernel*/, const StepCall& call) {
  const kernels::View& o = call[Tensor::o];
  for (i64 row = 0; row < o.rows; ++row)
    for (i64 head = call.scope.query_heads.begin; head < call.scope.query_heads.end; ++head)
      for (i64 w = 0; w < o.width; ++w) reinterpret_cast<double*>(o.at(0, row, head))[w] /= 2;
}

TEST(Operation, IsRun) {
  const Halved call({1, 1, 1});
  const Problem problem = random_problem();
  const schedule::RankSchedule schedule = call.schedule(0);
  const auto communicator = comm::make_serial_communicator();
  const auto kernel = kernels::make_cpu_kernel();
  std::vector<OperationKernel> operations = operation_kernels();
  operations.push_back({&halve, prepare_nothing<halve_on_host>});
  PassRunner runner(schedule, *kernel, {}, operations);
  std::vector<std::vector<double>> memory(schedule.buffers.size());
  for (std::size_t i = 0; i < memory.size(); ++i) {
    const schedule::Buffer& b = schedule.buffers[i];
    memory[i].assign(static_cast<std::size_t>(b.rows * b.heads.size() * b.width), 0);
    if (b.first < 0 && b.name.tensor == Tensor::q) memory[i] = problem.q.data;
    if (b.first < 0 && b.name.tensor == Tensor::k) memory[i] = problem.k.data;
    if (b.first < 0 && b.name.tensor == Tensor::v) memory[i] = problem.v.data;
    runner.place(static_cast<schedule::BufferId>(i),
                 kernels::View(reinterpret_cast<std::byte*>(memory[i].data()), DType::fp64, 1, b.rows,
                               b.heads, b.width));
  }
  kernels::ScoreTerms terms;
  terms.scale = problem.scale;
  const auto messages = comm::make_message_data_plane(*communicator);
  const auto channels = messages->connect(runner.ends(false));
  PassRecord record;
  runner.run({2, &terms}, *channels, record);
  const Array truth = halved_truth(call, problem);
  for (std::size_t i = 0; i < memory.size(); ++i) {
    if (!(schedule.buffers[i].name == BufferName{Tensor::o, BufferSlot::home})) continue;
    ASSERT_EQ(memory[i].size(), truth.data.size());
    for (std::size_t x = 0; x < memory[i].size(); ++x) ASSERT_NEAR(memory[i][x], truth.data[x], 1e-12);
  }
}

TEST(Operation, WithoutAKernelIsRefusedBeforeARun) {
  const Halved call({1, 1, 1});
  const schedule::RankSchedule schedule = call.schedule(0);
  const auto kernel = kernels::make_cpu_kernel();
  EXPECT_THROW(PassRunner(schedule, *kernel, {}), InternalError);
}

}  // namespace
}  // namespace usp::test
