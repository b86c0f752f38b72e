// SPDX-License-Identifier: Apache-2.0
#include "gpu_rank.hpp"

#include "usp/base/error.hpp"
#include "usp/comm/threads.hpp"
#include "usp/device/check.cuda.hpp"
#include "usp/runtime/attention.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>
#include <vector>

/// Forward and backward inside a CUDA graph. Skipped without a GPU.
namespace usp::test {
namespace {

constexpr i64 tokens = 520;
constexpr int heads = 4, kv_heads = 2, width = 64;

[[nodiscard]] AttentionPlan plan_of(Backend backend, int ring, int ulysses) {
  AttentionPlan p;
  p.backend = backend;
  p.mesh = {1, ring, ulysses};
  p.shape = {1, tokens, tokens, heads, kv_heads, width, width, DType::bf16};
  p.band = {0, unbounded};
  return p;
}

[[nodiscard]] std::vector<std::uint16_t> noise(i64 count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> values(static_cast<std::size_t>(count));
  for (std::uint16_t& x : values) {
    const float f = normal(random);
    std::uint32_t bits = 0;
    std::memcpy(&bits, &f, sizeof bits);
    x = static_cast<std::uint16_t>(bits >> 16);
  }
  return values;
}

class DeviceTensor {
 public:
  DeviceTensor(const device::CallStream& stream, i64 rows, int of_heads)
      : stream_(stream),
        buffer_(stream.device(), rows * of_heads * width * 2),
        view_(buffer_.data(), DType::bf16, 1, rows, {0, of_heads}, width) {
    device::set_device_bytes(buffer_.data(), 0, buffer_.bytes(), stream.get());
  }
  void randomize(unsigned seed) {
    const auto values = noise(view_.elements(), seed);
    device::copy_to_device(buffer_.data(), values.data(), buffer_.bytes(), stream_.get());
    stream_.synchronize();
  }
  [[nodiscard]] std::vector<std::uint16_t> content() const {
    std::vector<std::uint16_t> values(static_cast<std::size_t>(view_.elements()));
    device::copy_to_host(values.data(), buffer_.data(), buffer_.bytes(), stream_.get());
    stream_.synchronize();
    return values;
  }
  void clear() { device::set_device_bytes(buffer_.data(), 0xff, buffer_.bytes(), stream_.get()); }
  [[nodiscard]] const kernels::View& view() const { return view_; }

 private:
  const device::CallStream& stream_;
  device::DeviceBuffer buffer_;
  kernels::View view_;
};

/// The tensors of one rank, and a step on them.
struct Step {
  Step(const device::CallStream& stream, AttentionOperator& op, i64 rows)
      : attention(op),
        q(stream, rows, heads),
        k(stream, rows, kv_heads),
        v(stream, rows, kv_heads),
        d_out(stream, rows, heads),
        out(stream, rows, heads),
        dq(stream, rows, heads),
        dk(stream, rows, kv_heads),
        dv(stream, rows, kv_heads) {}
  void randomize(unsigned seed) {
    for (DeviceTensor* t : {&q, &k, &v, &d_out}) t->randomize(++seed);
  }
  void run() {
    const AttentionInputs in{q.view(), k.view(), v.view()};
    attention.forward(in, out.view());
    attention.backward(in, d_out.view(), {dq.view(), dk.view(), dv.view(), nullptr});
  }
  [[nodiscard]] std::vector<std::vector<std::uint16_t>> results() const {
    return {out.content(), dq.content(), dk.content(), dv.content()};
  }
  void clear() {
    for (DeviceTensor* t : {&out, &dq, &dk, &dv}) t->clear();
  }

  AttentionOperator& attention;
  DeviceTensor q, k, v, d_out, out, dq, dk, dv;
};

/// Captures what `body` enqueues; the capture ends also when it throws.
class Graph {
 public:
  Graph(const device::CallStream& stream, const std::function<void()>& body) {
    device::check_cuda(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal),
                       "cudaStreamBeginCapture");
    try {
      body();
    } catch (...) {
      cudaStreamEndCapture(stream.get(), &graph_);
      if (graph_ != nullptr) cudaGraphDestroy(graph_);
      throw;
    }
    device::check_cuda(cudaStreamEndCapture(stream.get(), &graph_), "cudaStreamEndCapture");
    device::check_cuda(cudaGraphInstantiate(&executable_, graph_, 0), "cudaGraphInstantiate");
  }
  ~Graph() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void replay(const device::CallStream& stream) const {
    device::check_cuda(cudaGraphLaunch(executable_, stream.get()), "cudaGraphLaunch");
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

class CudaGraph : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (device::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
  [[nodiscard]] static std::unique_ptr<kernels::AttentionKernel> make(kernels::Memory& memory) {
    const kernels::CudaKernelOptions repeatable{.deterministic = true};
    return GetParam() == Backend::cudnn ? kernels::make_cudnn_kernel(memory, repeatable)
                                        : kernels::make_mma_kernel(memory, repeatable);
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

TEST_P(CudaGraph, CopyEnginesAreRefusedByName) {
  comm::run_threads(2, comm::CommOptions{20, i64{1} << 30}, [&](comm::Communicator& control) {
    const GpuRank rank(control);
    const auto kernel = make(*rank.memory);
    AttentionOperator attention(plan_of(GetParam(), 2, 1), *rank.communicator, *kernel);
    attention.set_batch(Documents::single(tokens, tokens));
    Step step(rank.stream, attention, static_cast<i64>(attention.q_tokens().size()));
    step.randomize(static_cast<unsigned>(control.rank()));
    step.run();
    rank.stream.synchronize();
    try {
      const Graph graph(rank.stream, [&] { step.run(); });
      ADD_FAILURE() << "a graph of copy engines was captured";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("copy_engine"), std::string::npos) << error.what();
    }
    control.barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, CudaGraph, testing::Values(Backend::mma, Backend::cudnn),
                         [](const auto& backend) {
                           return backend.param == Backend::cudnn ? "cudnn" : "mma";
                         });

}  // namespace
}  // namespace usp::test
