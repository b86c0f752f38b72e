// SPDX-License-Identifier: Apache-2.0
// Layers whose tensors have other strides run one schedule: each form of them is prepared once.
#include "step_forms.hpp"

#include "pass_runner.hpp"
#include "schedule_trial.hpp"

#include "usp/comm/communicator.hpp"
#include "usp/kernels/backends.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <list>

namespace usp::test {
namespace {

/// Fits calls whose q has so many rows.
class OfRows final : public PreparedOperation {
 public:
  OfRows(i64 rows, int& alive) : rows_(rows), alive_(alive) { ++alive_; }
  ~OfRows() override { --alive_; }
  OfRows(const OfRows&) = delete;
  OfRows& operator=(const OfRows&) = delete;
  [[nodiscard]] bool fits(const StepList& list) const override {
    return list.front()[Tensor::q].rows == rows_;
  }
  void run(const StepList&) override {}

 private:
  i64 rows_;
  int& alive_;
};

struct Calls {
  StepList of(i64 rows) {
    std::vector<kernels::View>& v = views.emplace_back(tensor_count);
    v[static_cast<std::size_t>(Tensor::q)].rows = rows;
    steps.emplace_back().views = v.data();
    return {&steps.back()};
  }
  std::list<std::vector<kernels::View>> views;
  std::list<StepCall> steps;
};

TEST(StepForms, KeepTheFormsUsedLastAndThoseOfGraphs) {
  constexpr auto kept = static_cast<i64>(StepForms::kept);
  int alive = 0;
  Calls calls;
  StepForms forms;
  EXPECT_EQ(forms.find(calls.of(0)), nullptr);
  EXPECT_EQ(forms.hold(calls.of(0)), nullptr);
  for (i64 rows = 0; rows < kept; ++rows) forms.add(std::make_unique<OfRows>(rows, alive));
  for (i64 rows = 0; rows < kept; ++rows) EXPECT_NE(forms.find(calls.of(rows)), nullptr);
  PreparedOperation* const held = forms.hold(calls.of(0));
  EXPECT_NE(held, nullptr);
  (void)forms.find(calls.of(2));
  for (i64 rows = kept; rows < kept + 2; ++rows) forms.add(std::make_unique<OfRows>(rows, alive));
  EXPECT_EQ(alive, kept + 1);  // one of a graph, and those used last
  EXPECT_EQ(forms.find(calls.of(1)), nullptr);
  EXPECT_NE(forms.find(calls.of(2)), nullptr);
  for (i64 rows = 100; rows < 200; ++rows) forms.add(std::make_unique<OfRows>(rows, alive));
  EXPECT_EQ(forms.find(calls.of(0)), held);
  EXPECT_EQ(alive, kept + 1);
}

std::atomic<int>& prepared_steps() {
  static std::atomic<int> count{0};
  return count;
}

/// The kernels of the library, which count what they prepare.
template <std::size_t operation>
std::unique_ptr<PreparedOperation> counted(kernels::AttentionKernel& kernel, const StepList& list) {
  ++prepared_steps();
  return operation_kernels()[operation].prepare(kernel, list);
}

/// One rank's forward pass, whose rows of q, k and v lie so many elements apart.
class Layer {
 public:
  Layer(const schedule::RankSchedule& schedule, i64 gap) {
    for (const schedule::Buffer& b : schedule.buffers) {
      const bool home = b.name.place == BufferSlot::home && b.name.tensor <= Tensor::v;
      const i64 stride = b.heads.size() * b.width + (home ? gap : 0);
      std::vector<double>& memory = memory_.emplace_back(static_cast<std::size_t>(b.rows * stride));
      kernels::View view(reinterpret_cast<std::byte*>(memory.data()), DType::fp64, 1, b.rows, b.heads,
                         b.width);
      view.row_stride = stride;
      view.batch_stride = b.rows * stride;
      for (i64 row = 0; home && row < b.rows; ++row)
        for (i64 i = 0; i < b.heads.size() * b.width; ++i)
          memory[static_cast<std::size_t>(row * stride + i)] =
              static_cast<double>((row * 7 + i * 3) % 11) / 11;
      views_.push_back(view);
    }
  }
  std::vector<double> run(PassRunner& runner, const schedule::RankSchedule& schedule) {
    kernels::ScoreTerms terms;
    terms.scale = 0.7;
    const auto alone = comm::make_serial_communicator();
    const auto messages = comm::make_message_data_plane(*alone);
    const auto channels = messages->connect(runner.ends(false));
    PassRecord record;
    for (std::size_t i = 0; i < views_.size(); ++i)
      runner.place(static_cast<schedule::BufferId>(i), views_[i]);
    runner.run({2, &terms}, *channels, record);
    for (std::size_t i = 0; i < views_.size(); ++i)
      if (schedule.buffers[i].name == BufferName{Tensor::o, BufferSlot::home}) return memory_[i];
    return {};
  }
  bool hold(PassRunner& runner) {
    kernels::ScoreTerms terms;
    terms.scale = 0.7;
    for (std::size_t i = 0; i < views_.size(); ++i)
      runner.place(static_cast<schedule::BufferId>(i), views_[i]);
    return runner.hold_steps({2, &terms});
  }

 private:
  std::vector<std::vector<double>> memory_;
  std::vector<kernels::View> views_;
};

TEST(StepForms, LayersOfOtherStridesPrepareOnce) {
  AttentionPlan plan;
  plan.shape = {1, 24, 24, 4, 2, 3, 3, DType::fp64};
  plan.band = {0, unbounded};
  const schedule::TokenMap geometry(plan, Documents::packed({0, 9, 24}));
  schedule::CompactSchedule compact;
  schedule::generate(plan, geometry.heads().shared_kv(), compact);
  const schedule::RankSchedule schedule = schedule::expand(geometry, compact, 0, Pass::forward);
  std::vector<OperationKernel> operations = operation_kernels();
  operations[0].prepare = counted<0>, operations[1].prepare = counted<1>, operations[2].prepare = counted<2>;
  const auto kernel = kernels::make_cpu_kernel();
  PassRunner runner(schedule, *kernel, {}, operations);
  std::vector<Layer> layers;
  for (i64 gap = 0; gap < 5; ++gap) layers.emplace_back(schedule, gap);
  EXPECT_FALSE(layers[0].hold(runner));
  prepared_steps() = 0;
  const std::vector<double> expected = layers[0].run(runner, schedule);
  const int steps = prepared_steps();
  EXPECT_EQ(static_cast<std::size_t>(steps), schedule.steps.size());
  for (int step = 0; step < 3; ++step)
    for (Layer& layer : layers) EXPECT_EQ(layer.run(runner, schedule), expected);
  EXPECT_EQ(prepared_steps(), 5 * steps);
  EXPECT_TRUE(layers[3].hold(runner));
  for (i64 gap = 5; gap < 30; ++gap) {  // more forms than are kept
    Layer layer(schedule, gap);
    EXPECT_EQ(layer.run(runner, schedule), expected);
  }
  EXPECT_TRUE(layers[3].hold(runner));
  EXPECT_FALSE(layers[2].hold(runner));
  EXPECT_EQ(layers[2].run(runner, schedule), expected);
}

}  // namespace
}  // namespace usp::test
