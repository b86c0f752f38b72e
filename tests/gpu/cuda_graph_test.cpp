// SPDX-License-Identifier: Apache-2.0
#include "gpu_rank.hpp"
#include "graph_step.hpp"

#include "usp/base/error.hpp"
#include "usp/comm/threads.hpp"

#include <gtest/gtest.h>

#include <string>

/// Forward and backward inside a CUDA graph. Skipped without a GPU.
namespace usp::test {
namespace {

class CudaGraph : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (device::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
  [[nodiscard]] static std::unique_ptr<kernels::AttentionKernel> make(kernels::Memory& memory) {
    return make_repeatable(GetParam(), memory);
  }
};

TEST_P(CudaGraph, ReplayedStepReadsWhatItsTensorsHoldNow) {
  device::CallStream stream(0);
  const auto memory = kernels::make_cuda_memory(stream);
  const auto kernel = make(*memory);
  const auto alone = comm::make_serial_communicator();
  AttentionOperator attention(plan_of(GetParam(), 1, 1), *alone, *kernel);
  attention.set_batch(Documents::packed({0, 200, tokens}));
  Step step(stream, attention, tokens);
  step.randomize(1);
  step.run();
  const auto first = step.results();
  const Graph graph(stream, [&] { step.run(); });
  step.randomize(100);
  step.run();
  const auto expected = step.results();
  EXPECT_NE(first, expected);
  for (int replay = 0; replay < 3; ++replay) {
    step.clear();
    graph.replay(stream);
    EXPECT_EQ(step.results(), expected) << "replay " << replay;
  }
}

TEST_P(CudaGraph, FirstCallOfABatchIsRefused) {
  device::CallStream stream(0);
  const auto memory = kernels::make_cuda_memory(stream);
  const auto kernel = make(*memory);
  const auto alone = comm::make_serial_communicator();
  AttentionOperator attention(plan_of(GetParam(), 1, 1), *alone, *kernel);
  attention.set_batch(Documents::single(tokens, tokens));
  Step step(stream, attention, tokens);
  EXPECT_THROW(Graph(stream, [&] { step.run(); }), UsageError);
  step.randomize(1);
  step.run();
  const Graph graph(stream, [&] { step.run(); });
  graph.replay(stream);
  stream.synchronize();
}

/// Layers with tensors of other strides share a batch; each has to run once.
TEST_P(CudaGraph, FirstCallWithTensorsOfOtherStridesIsRefused) {
  device::CallStream stream(0);
  const auto memory = kernels::make_cuda_memory(stream);
  const auto kernel = make(*memory);
  const auto alone = comm::make_serial_communicator();
  AttentionOperator attention(plan_of(GetParam(), 1, 1), *alone, *kernel);
  attention.set_batch(Documents::single(tokens, tokens));
  Step step(stream, attention, tokens);
  step.randomize(1);
  step.run();
  const Graph first(stream, [&] { step.run(); });
  DeviceTensor wide(stream, tokens, 2 * heads);
  wide.randomize(7);
  kernels::View q = wide.view();
  q.heads = {0, heads};
  const auto forward = [&] { attention.forward({q, step.k.view(), step.v.view()}, step.out.view()); };
  EXPECT_THROW(Graph(stream, forward), UsageError);
  forward();
  const auto expected = step.out.content();
  const Graph other(stream, forward);
  step.clear();
  other.replay(stream);
  EXPECT_EQ(step.out.content(), expected);
  step.run();
  const auto results = step.results();
  step.clear();
  first.replay(stream);
  EXPECT_EQ(step.results(), results);
}

/// Replays over copy engines, where each rank has a GPU of its own; ranks that share one are refused.
TEST_P(CudaGraph, RanksOnGpusOfTheirOwnReplay) {
  for (const auto& [ring, ulysses] : {std::pair(2, 1), std::pair(1, 2)})
    comm::run_threads(2, comm::CommOptions{20, i64{1} << 30}, [&](comm::Communicator& control) {
      const GpuRank rank(control);
      const auto kernel = make(*rank.memory);
      AttentionOperator attention(plan_of(GetParam(), ring, ulysses), *rank.data_plane, *kernel);
      attention.set_batch(Documents::single(tokens, tokens));
      Step step(rank.stream, attention, static_cast<i64>(attention.q_tokens().size()));
      step.randomize(static_cast<unsigned>(10 * control.rank()));
      step.run();
      const auto first = step.results();
      if (device::device_count() < 2) {
        try {
          const Graph graph(rank.stream, [&] { step.run(); });
          ADD_FAILURE() << "a graph of copy engines was captured";
        } catch (const UsageError& error) {
          EXPECT_NE(std::string(error.what()).find("share a GPU"), std::string::npos) << error.what();
        }
      } else {
        const Graph graph(rank.stream, [&] { step.run(); });
        step.randomize(static_cast<unsigned>(100 + 10 * control.rank()));
        step.run();
        const auto expected = step.results();
        EXPECT_NE(expected, first);
        step.clear();
        rank.stream.synchronize();
        control.barrier();
        for (int replay = 0; replay < 1000; ++replay) {
          graph.replay(rank.stream);
          if (replay % 10 == 9) rank.stream.synchronize();
        }
        control.barrier();
        EXPECT_EQ(step.results(), expected);
        step.run();  // an eager call and a replay may follow one another
        rank.stream.synchronize();
        control.barrier();
        graph.replay(rank.stream);
        rank.stream.synchronize();
        control.barrier();
        EXPECT_EQ(step.results(), expected);
      }
      rank.data_plane->check();
      control.barrier();
    });
}

INSTANTIATE_TEST_SUITE_P(Backends, CudaGraph,
                         testing::Values(Backend::mma, Backend::cudnn, Backend::hopper,
                                         Backend::hopper_cudnn),
                         [](const auto& backend) { return std::string(word_of(backend.param)); });

}  // namespace
}  // namespace usp::test
