// SPDX-License-Identifier: Apache-2.0
// A backend that only this test knows is planned, explained, expanded and executed by its records.
#include "runtime_trial.hpp"
#include "wrapped_backend.hpp"

#include "usp/base/error.hpp"
#include "usp/comm/threads.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/explain.hpp"
#include "usp/planner/plan_attention.hpp"
#include "usp/planner/plan_print.hpp"
#include "usp/runtime/make_kernel.hpp"
#include "usp/schedule/step_backends.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>

namespace usp::test {
namespace {

/// A call planned for the backend on so many threads.
struct Planned {
  topology::Cluster cluster;
  Calibration calibration;
  AttentionRequest request;
  AttentionResult result;

  explicit Planned(const std::function<void(AttentionRequest&)>& change)
      : cluster(thread_cluster(4)), calibration(uncalibrated(data_sheet_of(cluster))) {
    request.cluster = &cluster;
    request.calibration = &calibration;
    request.shape = {1, 48, 48, 4, 2, 8, 8, DType::fp32};
    request.documents = Documents::single(48, 48);
    request.band = {0, unbounded};
    request.backend = wrapped;
    request.fixed.ring = 2;
    request.fixed.ulysses = 2;
    change(request);
    result = plan_attention(request);
  }
  Planned(const Planned&) = delete;
  Planned& operator=(const Planned&) = delete;
  [[nodiscard]] const AttentionPlan& plan() const { return result.best().plan; }
};

struct Steps {
  int own = 0, left = 0;
};

/// Runs the plan and holds it against the fp64 oracle; the steps of all ranks.
Steps run(const Planned& planned) {
  RuntimeCase c;
  c.plan = planned.plan();
  c.documents = planned.request.documents;
  std::atomic<int> own{0}, left{0};
  comm::run_threads(c.plan.mesh.size(), comm::CommOptions{20, i64{1} << 30}, [&](comm::Communicator& comm) {
    const auto kernel = make_kernel(wrapped, kernels::host_memory(), false, factories_with_wrapped());
    EXPECT_EQ(run_trial(c, comm, *kernel).rows, "");
    const auto& counted = dynamic_cast<const WrappedKernel&>(*kernel);
    own += counted.own_steps, left += counted.left_steps;
  });
  return {own, left};
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Backend, ComputesWhatItsRecordTakes) {
  const Planned planned([](AttentionRequest&) {});
  EXPECT_EQ(planned.plan().backend, wrapped);
  ASSERT_EQ(planned.result.notes.size(), 1U);
  EXPECT_TRUE(holds(planned.result.notes[0], "backend wrapped is priced as GPUs of the cluster"));
  const std::string text = attention_text(planned.request, planned.result);
  EXPECT_TRUE(holds(text, "backend   wrapped: forward 8 of 8 steps; backward 8 of 8 steps\n")) << text;
  const Steps steps = run(planned);
  EXPECT_EQ(steps.own,
            planned.result.forward_steps->of(wrapped) + planned.result.backward_steps->of(wrapped));
  EXPECT_EQ(steps.left, 0);
}

TEST(Backend, LeavesTheRestToItsFallback) {
  const Planned planned([](AttentionRequest& r) { r.score.softcap = 2; });
  ASSERT_EQ(planned.result.notes.size(), 2U);
  EXPECT_EQ(
      planned.result.notes[1],
      "backend wrapped: every step goes to the cpu kernel: the Wrapped backend does not support softcap; "
      "plan with --backend cpu");
  const Steps steps = run(planned);
  EXPECT_EQ(steps.own, 0);
  EXPECT_EQ(steps.left,
            planned.result.forward_steps->of(Backend::cpu) + planned.result.backward_steps->of(Backend::cpu));
  EXPECT_GT(steps.left, 0);
}

/// The first ring row's own documents are too many blocks.
TEST(Backend, SharesAPassWithItsFallback) {
  const Planned planned([](AttentionRequest& r) {
    r.shape.q_tokens = r.shape.kv_tokens = 96;
    r.fixed.layout = LayoutKind::contiguous;
    std::vector<i64> borders;
    for (i64 token = 0; token <= 24; token += 2) borders.push_back(token);
    borders.push_back(96);
    r.documents = Documents::packed(borders);
  });
  const std::string text = attention_text(planned.request, planned.result);
  EXPECT_TRUE(holds(text, " cpu: too many blocks for Wrapped to be faster\n")) << text;
  const Steps steps = run(planned);
  EXPECT_GT(steps.own, 0);
  EXPECT_GT(steps.left, 0);
  EXPECT_EQ(steps.left,
            planned.result.forward_steps->of(Backend::cpu) + planned.result.backward_steps->of(Backend::cpu));
}

TEST(Backend, IsExplainedByItsWord) {
  const Planned planned([](AttentionRequest&) {});
  ExplainRequest request;
  request.rank = 0;
  const std::string text = explain_text(make_plan_file(planned.request, planned.result.best()), request);
  EXPECT_TRUE(holds(text, "by wrapped: ")) << text;
}

TEST(Backend, WithoutAFactoryOrOfOtherHardwareIsRefused) {
  EXPECT_THROW((void)make_kernel(wrapped, kernels::host_memory(), false), InternalError);
  EXPECT_THROW((void)make_kernel(Backend::mma, kernels::host_memory(), false), UsageError);
  EXPECT_THROW((void)index_of(wrapped), InternalError);
}

}  // namespace
}  // namespace usp::test
