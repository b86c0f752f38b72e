// SPDX-License-Identifier: Apache-2.0
// Closed-form golden values through every mesh, method and layout: inputs x[a][b][c] = sin(0.37 a + 1.3 b +
// 0.71 c + phase) of packed causal documents [0, 5, 13, 24), 4 query heads on 2 KV heads of dimension 3,
// fp64. The sums are those of tests/contract/reference_kernel_test.cpp, computed there from dense attention.
#include "usp/runtime/call_run.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace usp {
namespace {

constexpr i64 tokens = 24, width = 3;

[[nodiscard]] HostTensor wave(i64 heads, double phase) {
  HostTensor tensor(DType::fp64, 1, tokens, {0, heads}, width);
  auto* at = reinterpret_cast<double*>(tensor.bytes().data());
  for (i64 a = 0; a < tokens; ++a)
    for (i64 b = 0; b < heads; ++b)
      for (i64 c = 0; c < width; ++c)
        *at++ = std::sin(0.37 * static_cast<double>(a) + 1.3 * static_cast<double>(b) +
                         0.71 * static_cast<double>(c) + phase);
  return tensor;
}

struct Sums {
  double plain = 0, weighted = 0;
};

[[nodiscard]] Sums sums_of(const std::vector<Part>& parts, bool add) {
  const HostTensor whole = assemble(parts, tokens, add);
  const auto* values = reinterpret_cast<const double*>(whole.bytes().data());
  Sums sums;
  for (std::size_t i = 0; i < whole.bytes().size() / sizeof(double); ++i) {
    sums.plain += values[i];
    sums.weighted += values[i] * std::cos(0.13 * static_cast<double>(i));
  }
  return sums;
}

void expect_golden(const Sums& sums, double plain, double weighted) {
  EXPECT_NEAR(sums.plain, plain, 1e-10 * std::max(1.0, std::abs(plain)));
  EXPECT_NEAR(sums.weighted, weighted, 1e-10 * std::abs(weighted));
}

TEST(Golden, AnyShardingGivesTheSameSums) {
  CallTensors in;
  in.q = wave(4, 0.1);
  in.k = wave(2, 0.9);
  in.v = wave(2, 1.7);
  in.d_out = wave(4, 4.0);
  const Documents documents = Documents::packed({0, 5, 13, 24});
  int runs = 0;
  for (const Method method : {Method::ring, Method::ring_direct, Method::all_gather_kv})
    for (const LayoutKind layout :
         {LayoutKind::contiguous, LayoutKind::zigzag, LayoutKind::striped, LayoutKind::balanced})
      for (const auto& [ring, ulysses] :
           {std::pair{1, 1}, {4, 1}, {1, 4}, {2, 2}, {3, 2}, {2, 4}, {5, 1}, {1, 3}}) {
        AttentionPlan plan;
        plan.shape = {1, tokens, tokens, 4, 2, 3, 3, DType::fp64};
        plan.mesh = {1, ring, ulysses};
        plan.method = method;
        plan.layout = layout;
        plan.band = {0, unbounded};
        plan.return_lse = true;
        const auto run = run_attention(plan, documents, in, {});
        ASSERT_TRUE(run.has_value());
        SCOPED_TRACE(std::to_string(ring) + " x " + std::to_string(ulysses) + " method " +
                     std::string(method->word) + " layout " + std::to_string(static_cast<int>(layout)));
        expect_golden(sums_of(run->out, false), -9.977144691784, 1.082140129755);
        expect_golden(sums_of(run->lse, false), 155.0236123815, 1.360082648465);
        expect_golden(sums_of(run->dq, true), 2.823310383838, -0.7303101471533);
        expect_golden(sums_of(run->dk, true), 0, -3.927553233066);  // softmax is shift invariant
        expect_golden(sums_of(run->dv, true), 11.18815918207, -6.056641690963);
        EXPECT_EQ(run->bytes_difference(), "");
        ++runs;
      }
  EXPECT_EQ(runs, 96);
}

}  // namespace
}  // namespace usp
