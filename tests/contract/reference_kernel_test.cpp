// SPDX-License-Identifier: Apache-2.0
// The reference backend against dense attention, closed-form golden values and finite differences.
#include "attention_cases.hpp"
#include "dense_attention.hpp"

#include "usp/kernels/backends.hpp"

#include <gtest/gtest.h>

namespace usp::test {
namespace {

TEST(ReferenceKernel, EqualsDenseAttention) {
  const auto kernel = kernels::make_reference_kernel();
  for (const Case& c : all_cases()) {
    SCOPED_TRACE(c.name);
    const Inputs in(c, DType::fp64, DType::fp64);
    Trial run(c, in);
    run.all(*kernel);
    const Dense dense(c, in);
    const Results a = run.results();
    EXPECT_LT(error(a.o, dense.out.o), 1e-13);
    EXPECT_LT(error(a.lse, dense.out.lse), 1e-13);
    EXPECT_LT(error(a.delta, dense.out.delta), 1e-12);
    EXPECT_LT(error(a.dq, dense.out.dq), 1e-12);
    EXPECT_LT(error(a.dk, dense.out.dk), 1e-12);
    EXPECT_LT(error(a.dv, dense.out.dv), 1e-12);
    EXPECT_LT(error(a.d_sink, dense.out.d_sink), 1e-12);
  }
}

TEST(Oracle, EqualsDenseAttention) {
  for (const Case& c : all_cases()) {
    SCOPED_TRACE(c.name);
    const Inputs in(c, DType::fp64, DType::fp64);
    const kernels::Oracle oracle = oracle_of(c, in, DType::fp64);
    const Dense dense(c, in);
    EXPECT_EQ(row_faults(dense.out, oracle, DType::fp64), "");
    const auto expect = [](const kernels::OracleTensor& tensor, double limit) {
      for (std::size_t i = 0; i < tensor.values.size(); ++i)
        if (std::isfinite(tensor.values[i])) {
          EXPECT_LE(std::abs(tensor.values[i]), limit * tensor.terms[i]) << "a sum exceeds its terms";
        }
    };
    for (const kernels::OracleTensor* t : {&oracle.out, &oracle.lse, &oracle.dq, &oracle.dk, &oracle.dv})
      expect(*t, 1);
  }
}

TEST(Oracle, AllowsProbabilitiesToUnderflow) {
  schedule::Slice far = banded(9, 7, 0, unbounded);
  far.q_pos = 60;
  Case c = one_slice("far", far);
  c.alibi = c.sink = true;
  const Inputs in(c, DType::fp16, DType::fp16);
  const kernels::Oracle oracle = oracle_of(c, in, DType::fp16);
  Results flushed;
  for (const auto& [values, truth] : {std::pair(&flushed.o, &oracle.out),
                                      {&flushed.delta, &oracle.delta},
                                      {&flushed.dq, &oracle.dq},
                                      {&flushed.dk, &oracle.dk},
                                      {&flushed.dv, &oracle.dv}}) {
    for (const double x : truth->values) EXPECT_TRUE(x != 0 && std::abs(x) < 1e-9) << x;
    values->assign(truth->values.size(), 0);
  }
  flushed.lse = oracle.lse.values;
  flushed.d_sink.assign(oracle.d_sink.size(), 0);
  EXPECT_EQ(row_faults(flushed, oracle, DType::fp16), "");
}

/// sum of o * d_o with one input element moved by `step`.
double loss(const Case& c, const Inputs& in, Tensor4 Inputs::*which, std::size_t element, double step,
            double d_sink) {
  Inputs moved = in;
  std::vector<double> values = (moved.*which).values();
  values[element] += step;
  (moved.*which).set(values);
  Trial run(c, moved);
  if (d_sink != 0) {
    std::vector<double> sinks = run.lse.values();
    for (double& x : sinks) x += d_sink;
    run.lse.set(sinks);
  }
  run.attend(*kernels::make_reference_kernel(), 0, c.slices.size());
  const std::vector<double> o = run.o.values(), d_o = in.d_o.values();
  double sum = 0;
  for (std::size_t i = 0; i < o.size(); ++i) sum += o[i] * d_o[i];
  return sum;
}

class Gradients : public ::testing::TestWithParam<std::size_t> {};

TEST_P(Gradients, EqualFiniteDifferences) {
  Case c = one_slice("gradients", banded(9, 11, -3, 6), 5);
  c.query_heads = {1, 3};
  c.group = 2;
  c.dv = 4;
  const std::size_t which = GetParam();
  if (which == 1 || which == 5) c.softcap = 0.8;
  if (which == 2 || which == 5) c.alibi = true;
  if (which == 3 || which == 5) c.dropout = 0.25;
  if (which == 4 || which == 5) c.sink = true;
  const Inputs in(c, DType::fp64, DType::fp64);
  Trial run(c, in);
  run.all(*kernels::make_reference_kernel());
  const Results grads = run.results();
  const double h = 1e-5;
  const auto compare = [&](Tensor4 Inputs::*tensor, const std::vector<double>& gradient) {
    std::vector<double> differences;
    for (std::size_t i = 0; i < gradient.size(); ++i)
      differences.push_back((loss(c, in, tensor, i, h, 0) - loss(c, in, tensor, i, -h, 0)) / (2 * h));
    EXPECT_LT(error(gradient, differences), 1e-8);
  };
  compare(&Inputs::q, grads.dq);
  compare(&Inputs::k, grads.dk);
  compare(&Inputs::v, grads.dv);
  if (!c.sink) return;
  double all_sinks = 0;
  for (const double x : grads.d_sink) all_sinks += x;
  const double difference = (loss(c, in, &Inputs::q, 0, 0, h) - loss(c, in, &Inputs::q, 0, 0, -h)) / (2 * h);
  EXPECT_NEAR(all_sinks, difference, 1e-8 * std::abs(difference));
}

INSTANTIATE_TEST_SUITE_P(Terms, Gradients, ::testing::Range<std::size_t>(0, 6));

/// Closed-form golden values: x[a][b][c] = sin(0.37 a + 1.3 b + 0.71 c + phase), packed causal documents
/// [0, 5, 13, 24), 4 query heads on 2 KV heads of dimension 3.
class Golden {
 public:
  Golden() {
    c = one_slice("golden", rectangle(24, 24), 3);
    c.query_heads = {0, 4};
    c.group = 2;
    c.slices.clear();
    const i64 borders[] = {0, 5, 13, 24};
    for (std::size_t n = 0; n < 3; ++n) {
      schedule::Slice s = banded(borders[n + 1] - borders[n], borders[n + 1] - borders[n], 0, unbounded);
      s.q_row = s.k_row = s.dk_row = s.q_pos = s.k_pos = borders[n];
      c.slices.push_back(s);
    }
  }
  static std::vector<double> wave(int heads, double phase) {
    std::vector<double> out;
    for (int a = 0; a < 24; ++a)
      for (int b = 0; b < heads; ++b)
        for (int w = 0; w < 3; ++w) out.push_back(std::sin(0.37 * a + 1.3 * b + 0.71 * w + phase));
    return out;
  }
  static double sum(const std::vector<double>& x) {
    double s = 0;
    for (const double value : x) s += value;
    return s;
  }
  static double weighted(const std::vector<double>& x) {
    double s = 0;
    for (std::size_t i = 0; i < x.size(); ++i) s += x[i] * std::cos(0.13 * static_cast<double>(i));
    return s;
  }
  Case c;
};

void expect_relative(double value, double golden) {
  EXPECT_NEAR(value, golden, 1e-10 * std::abs(golden));
}

TEST(ReferenceKernel, ClosedFormGoldenValues) {
  const Golden golden;
  Inputs in(golden.c, DType::fp64, DType::fp64);
  in.q.set(Golden::wave(4, 0.1));
  in.k.set(Golden::wave(2, 0.9));
  in.v.set(Golden::wave(2, 1.7));
  in.d_o.set(Golden::wave(4, 4.0));
  Trial run(golden.c, in);
  run.all(*kernels::make_reference_kernel());
  const Results r = run.results();
  expect_relative(Golden::sum(r.o), -9.977144691784);
  expect_relative(Golden::weighted(r.o), 1.082140129755);
  expect_relative(Golden::sum(r.lse), 155.0236123815);
  expect_relative(Golden::weighted(r.lse), 1.360082648465);
  expect_relative(Golden::sum(r.dq), 2.823310383838);
  expect_relative(Golden::weighted(r.dq), -0.7303101471533);
  EXPECT_NEAR(Golden::sum(r.dk), 0, 1e-12);
  expect_relative(Golden::weighted(r.dk), -3.927553233066);
  expect_relative(Golden::sum(r.dv), 11.18815918207);
  expect_relative(Golden::weighted(r.dv), -6.056641690963);
}

}  // namespace
}  // namespace usp::test
