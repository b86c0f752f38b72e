// SPDX-License-Identifier: Apache-2.0
// What cuDNN itself computes, with a fallback that fails the test: carried and overwrite, in both result
// types.
#include "cudnn_kernel.hpp"

#include "attention_cases.hpp"
#include "device_mirror.hpp"

#include "usp/device/check.cuda.hpp"
#include "usp/kernels/backends.hpp"

#include <gtest/gtest.h>

namespace usp::test {
namespace {

class Cudnn : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device::device_count() == 0) GTEST_SKIP() << "there is no GPU";
    kernel_ = on_device([](kernels::Memory& memory) {
      return kernels::cudnn::make_kernel(memory, {}, []() -> std::unique_ptr<kernels::AttentionKernel> {
        throw std::logic_error("cuDNN was expected to take this");
      });
    });
  }
  static constexpr double limit(DType type) { return type == DType::bf16 ? 1e-2 : 1.5e-3; }

  struct Truth {
    Results whole;
    kernels::Oracle rows;
  };
  static Truth reference(const Case& c, const Inputs& in) {
    const Inputs exact(c, in);
    Trial run(c, exact);
    run.all(*kernels::make_reference_kernel());
    return {run.results(), oracle_of(c, in, in.q.view().type)};
  }
  static void expect_close(const Results& a, const Truth& truth, DType type) {
    const Results& b = truth.whole;
    EXPECT_LT(error(a.o, b.o), limit(type)) << "o";
    EXPECT_LT(error(a.lse, b.lse), 1e-4) << "lse";
    EXPECT_LT(error(a.dq, b.dq), limit(type)) << "dq";
    EXPECT_LT(error(a.dk, b.dk), limit(type)) << "dk";
    EXPECT_LT(error(a.dv, b.dv), limit(type)) << "dv";
    EXPECT_EQ(row_faults(a, truth.rows, type), "");
  }
  /// Results of overwrite calls into memory full of NaN, of the input or the accumulator type.
  Results overwrite(const Case& c, const Inputs& in, DType result, Order order) {
    Trial run(c, in, order);
    const auto nan = std::numeric_limits<double>::quiet_NaN();
    run.o = Tensor4(result, c.batch, c.q_rows, c.query_heads, c.dv, order);
    run.dq = Tensor4(result, c.batch, c.q_rows, c.query_heads, c.dqk, order);
    run.dk = Tensor4(result, c.batch, c.grad_rows(), c.kv_heads(), c.dqk, order);
    run.dv = Tensor4(result, c.batch, c.grad_rows(), c.kv_heads(), c.dv, order);
    for (Tensor4* t : {&run.o, &run.lse, &run.dq, &run.dk, &run.dv}) t->set(nan);
    const double* sink = c.sink ? run.terms.sinks.data() : nullptr;
    const kernels::AttendScope scope = run.scope(0, c.slices.size());
    run_once(*kernel_, kernels::AttendArgs{in.q.view(), in.k.view(), in.v.view(), run.o.view(),
                                           run.lse.view(), scope, true, sink});
    kernel_->delta({in.d_o.view(), run.o.view(), run.lse.view(), run.delta.view(), c.query_heads, sink,
                    c.sink ? run.d_sink.data() : nullptr});
    run_once(*kernel_, kernels::AttendGradArgs{in.q.view(), in.k.view(), in.v.view(), in.d_o.view(),
                                               run.lse.view(), run.delta.view(), run.dq.view(), run.dk.view(),
                                               run.dv.view(), scope, true, run.o.view()});
    return run.results();
  }
  void expect_right(const Case& c, const std::vector<DType>& types = {DType::bf16}) {
    for (const DType type : types) {
      SCOPED_TRACE(c.name + (type == DType::bf16 ? " bf16" : " fp16"));
      const Inputs in(c, type, type);
      const Truth truth = reference(c, in);
      Trial carried(c, in);
      carried.all(*kernel_, c.slices.size());
      expect_close(carried.results(), truth, type);
      expect_close(overwrite(c, in, DType::fp32, Order::batch_first), truth, type);
      const Inputs head_first(c, type, type, Order::head_first);
      expect_close(overwrite(c, head_first, type, Order::head_first), truth, type);
      expect_close(overwrite(c, in, type, Order::batch_first), truth, type);
    }
  }

  std::unique_ptr<kernels::AttentionKernel> kernel_;
};

Case heads_of(Case c, Range heads, int group) {
  c.query_heads = heads;
  c.group = group;
  return c;
}

TEST_F(Cudnn, OneBlock) {
  expect_right(heads_of(one_slice("full", rectangle(192, 320), 128), {0, 2}, 1));
  expect_right(heads_of(one_slice("causal", banded(256, 256, 0, unbounded), 128), {4, 8}, 2),
               {DType::bf16, DType::fp16});
  expect_right(heads_of(one_slice("causal_64", banded(200, 200, 0, unbounded), 64), {0, 4}, 4));
  expect_right(one_slice("causal_256", banded(130, 130, 0, unbounded), 256));
  expect_right(one_slice("offset", banded(100, 180, -80, unbounded), 64));
  expect_right(one_slice("window", banded(250, 250, 0, 60), 64));
  expect_right(one_slice("inverse", banded(140, 140, -unbounded, 0), 64));
}

TEST_F(Cudnn, ABatch) {
  Case c = heads_of(one_slice("batch", banded(160, 160, 0, unbounded), 64), {0, 4}, 2);
  c.batch = 3;
  expect_right(c);
}

TEST_F(Cudnn, UnequalHeadDims) {
  Case c = one_slice("latent", banded(160, 160, 0, unbounded), 192);
  c.dv = 128;
  expect_right(c);
}

TEST_F(Cudnn, RowsThatSeeNothing) {
  expect_right(one_slice("hidden_rows", banded(160, 100, 40, unbounded), 64));
  expect_right(one_slice("hidden_keys", banded(100, 160, 40, unbounded), 64));
}

TEST_F(Cudnn, ZigzagStepsOfARing) {
  // Two chunks of 96 rows of each of four sources; the rank's own are rows 0..191.
  Case c = heads_of(one_slice("zigzag", rectangle(192, 384), 64), {0, 4}, 2);
  const auto chunk = [](schedule::Slice s, i64 q, i64 k) {
    s.q_row = q, s.k_row = s.dk_row = k;
    return s;
  };
  c.slices = {chunk(banded(96, 96, 0, unbounded), 0, 0), chunk(rectangle(96, 96), 96, 0),
              chunk(banded(96, 96, 0, unbounded), 96, 96), chunk(rectangle(192, 96), 0, 192),
              chunk(rectangle(96, 96), 96, 288)};
  expect_right(c);
}

TEST_F(Cudnn, SinkOfAFreshState) {
  Case c = one_slice("sink", banded(160, 160, 0, unbounded), 64);
  c.sink = true;
  const Inputs in(c, DType::bf16, DType::bf16);
  const Truth truth = reference(c, in);
  const Results run = overwrite(c, in, DType::bf16, Order::batch_first);
  expect_close(run, truth, DType::bf16);
  EXPECT_LT(error(run.d_sink, truth.whole.d_sink), 2e-2);
}

TEST_F(Cudnn, GradientNeedsNoDeltaWhereOIsGiven) {
  const auto mixed = on_device([](kernels::Memory& memory) {
    return kernels::cudnn::make_kernel(
        memory, {}, [&memory] { return from_host(memory, kernels::make_reference_kernel()); });
  });
  Case c = one_slice("mixed", rectangle(64, 300), 64);
  // The second slice has more queries than its window has keys, so it goes to the fallback.
  schedule::Slice window = banded(64, 40, 10, 20);
  window.k_row = window.dk_row = 64;
  c.slices = {banded(64, 64, 0, unbounded), window};
  const Inputs in(c, DType::bf16, DType::bf16);
  Trial run(c, in);
  run.all(*mixed);
  const Truth truth = reference(c, in);
  expect_close(run.results(), truth, DType::bf16);
  for (Tensor4* t : {&run.dq, &run.dk, &run.dv}) t->set(0.0);
  kernels::AttendGradArgs args = run.grad_args(0, 2);
  args.delta = {};
  run_once(*mixed, args);
  expect_close(run.results(), truth, DType::bf16);
}

TEST_F(Cudnn, StepsGoWhereTheirPlanSaysAndDeparturesAreCounted) {
  const auto mixed = on_device([](kernels::Memory& memory) {
    return kernels::cudnn::make_kernel(
        memory, {}, [&memory] { return from_host(memory, kernels::make_reference_kernel()); });
  });
  Case c = one_slice("planned", banded(64, 64, 0, unbounded), 64);
  const Inputs in(c, DType::bf16, DType::bf16);
  const auto attend = [&](std::optional<Backend> use, double softcap) {
    c.softcap = softcap;
    Trial run(c, in);
    kernels::AttendScope scope = run.scope(0, 1);
    scope.use = use;
    run_once(*mixed,
             kernels::AttendArgs{in.q.view(), in.k.view(), in.v.view(), run.o.view(), run.lse.view(), scope});
  };
  for (const auto use : {std::optional<Backend>{}, std::optional(Backend::mma)})
    for (const double softcap : {0.0, 30.0}) attend(use, softcap);
  attend(Backend::cudnn, 0);
  EXPECT_TRUE(mixed->fallbacks().empty());
  attend(Backend::cudnn, 30);
  attend(Backend::cudnn, 30);
  const std::vector<kernels::BackendFallback> fallbacks = mixed->fallbacks();
  ASSERT_EQ(fallbacks.size(), 1U);
  EXPECT_EQ(fallbacks[0].pass, Pass::forward);
  EXPECT_EQ(fallbacks[0].why, schedule::UnsupportedReason::softcap);
  EXPECT_EQ(fallbacks[0].count, 2);
}

TEST_F(Cudnn, ARunIsCapturable) {
  device::CallStream stream(0);
  const auto memory = kernels::make_cuda_memory(stream);
  const auto kernel = kernels::cudnn::make_kernel(*memory, {}, nullptr);
  const Case c = one_slice("repeat", banded(256, 256, 0, unbounded), 64);
  const Terms terms(c);
  const device::DeviceBuffer q(0, 256 * 64 * 2), o(0, 256 * 64 * 4), lse(0, 256 * 4);
  device::set_device_bytes(q.data(), 0, q.bytes(), stream.get());
  const kernels::View in(q.data(), DType::bf16, 1, 256, {0, 1}, 64);
  const kernels::AttendArgs args{in,
                                 in,
                                 in,
                                 kernels::View(o.data(), DType::fp32, 1, 256, {0, 1}, 64),
                                 kernels::View(lse.data(), DType::fp32, 1, 256, {0, 1}, 1),
                                 {{0, 1}, 1, c.slices.data(), 1, &terms.terms, {}},
                                 true};
  const auto step = kernel->prepare(args);
  step->run(args);
  // A capture refuses what allocates or blocks.
  cudaGraph_t graph = nullptr;
  device::check_cuda(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "capture");
  EXPECT_NO_THROW(step->run(args));
  device::check_cuda(cudaStreamEndCapture(stream.get(), &graph), "the end of the capture");
  EXPECT_NE(graph, nullptr);
  cudaGraphDestroy(graph);
}

}  // namespace
}  // namespace usp::test
