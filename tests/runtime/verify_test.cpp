// SPDX-License-Identifier: Apache-2.0
// What --verify must notice: each region of each result, wrong by everything or by little, in a run whose
// late keys have tiny gradients. And what it cannot tell: terms beyond the type.
#include "usp/base/error.hpp"
#include "usp/base/json.hpp"
#include "usp/kernels/rounding.hpp"
#include "usp/runtime/run_print.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <thread>

namespace usp {
namespace {

constexpr i64 tokens = 2048;

/// One causal call on two ranks and its truth.
struct Verified {
  AttentionPlan plan;
  Documents documents;
  CallTensors tensors;
  kernels::Oracle truth;
  RunResult run;

  Verified(DType dtype, i64 count, bool return_lse, i64 window = unbounded) {
    plan.shape = {1, count, count, 2, 1, 16, 16, dtype};
    plan.mesh = {1, 2, 1};
    plan.layout = LayoutKind::zigzag;
    plan.band = {0, window};
    plan.sink = true;
    plan.return_lse = return_lse;
    documents = Documents::single(count, count);
    tensors = random_tensors(plan, documents, 0);
    execute();
  }
  void execute() {
    truth = dense_attention(plan, documents, tensors, true);
    run = run_attention(plan, documents, tensors, {}).value();
  }
  [[nodiscard]] RunSummary summary_of(const RunResult& result) const {
    RunSummary summary;
    summary.plan = plan;
    summary.run = result;
    summary.errors = errors_of(result, truth, plan.shape.dtype);
    summary.tolerance = tolerance_of(plan.shape.dtype);
    return summary;
  }
};

const Verified& causal(DType dtype) {
  static const Verified bf16(DType::bf16, tokens, true), fp32(DType::fp32, tokens / 4, false);
  return dtype == DType::bf16 ? bf16 : fp32;
}

struct Result {
  const char* name;
  std::vector<Part> RunResult::*parts;
  kernels::OracleTensor kernels::Oracle::*truth;
};
constexpr Result results[] = {{"out", &RunResult::out, &kernels::Oracle::out},
                              {"lse", &RunResult::lse, &kernels::Oracle::lse},
                              {"dq", &RunResult::dq, &kernels::Oracle::dq},
                              {"dk", &RunResult::dk, &kernels::Oracle::dk},
                              {"dv", &RunResult::dv, &kernels::Oracle::dv}};

using Region = std::function<bool(i64 token, i64 head)>;
/// A new value from the old one and what its terms allow.
using Poison = std::function<double(double x, double allowed)>;

/// Changes a gathered result where it lies in the region.
[[nodiscard]] RunResult poisoned(const Verified& verified, const Result& result, const Region& region,
                                 const Poison& poison) {
  RunResult run = verified.run;
  const kernels::OracleTensor& truth = verified.truth.*result.truth;
  const DType dtype = std::strcmp(result.name, "lse") == 0 ? accumulator_of(verified.plan.shape.dtype)
                                                           : verified.plan.shape.dtype;
  const Pass pass = result.name[0] == 'd' ? Pass::backward : Pass::forward;
  const double unit = kernels::rounding_factor(dtype, pass) * kernels::unit_roundoff(dtype);
  for (Part& part : run.*result.parts) {
    const DType type = part.rows.view().type;
    HostTensor wide = part.rows.as(DType::fp64);
    const kernels::View view = wide.view();
    for (i64 row = 0; row < view.rows; ++row)
      for (i64 head = view.heads.begin; head < view.heads.end; ++head) {
        const i64 token = part.tokens[static_cast<std::size_t>(row)];
        if (!region(token, head)) continue;
        auto* x = reinterpret_cast<double*>(view.at(0, row, head));
        const double* terms = truth.terms.data() + truth.at(0, token, head);
        for (i64 w = 0; w < view.width; ++w) x[w] = poison(x[w], unit * terms[w]);
      }
    part.rows = wide.as(type);
  }
  return run;
}

class Poisoned : public ::testing::TestWithParam<DType> {};

TEST_P(Poisoned, TheRunItselfIsRight) {
  const RunSummary summary = causal(GetParam()).summary_of(causal(GetParam()).run);
  EXPECT_EQ(run_fault(summary), "");
  EXPECT_TRUE(summary.errors->verifiable());
}

TEST_P(Poisoned, EveryRegionOfEveryResultIsNoticed) {
  const Verified& verified = causal(GetParam());
  const i64 last = verified.plan.shape.q_tokens - 1, late = (last + 1) * 94 / 100;
  const std::pair<const char*, Region> regions[] = {
      {"the first token", [](i64 token, i64) { return token == 0; }},
      {"the last token", [=](i64 token, i64) { return token == last; }},
      {"one token", [=](i64 token, i64) { return token == last / 3; }},
      {"one head of one token", [=](i64 token, i64 head) { return token == late && head == 0; }},
      {"one head", [](i64, i64 head) { return head == 0; }},
      {"the last 6%", [=](i64 token, i64) { return token >= late; }}};
  const std::pair<const char*, Poison> poisons[] = {
      {"zero", [](double, double) { return 0.0; }},
      {"a little", [](double x, double allowed) { return x + 3 * allowed; }},
      {"NaN", [](double, double) { return std::numeric_limits<double>::quiet_NaN(); }}};
  for (const Result& result : results)
    for (const auto& [where, region] : regions)
      for (const auto& [what, poison] : poisons) {
        SCOPED_TRACE(std::string(result.name) + ": " + what + " in " + where);
        const RunSummary summary = verified.summary_of(poisoned(verified, result, region, poison));
        const std::string fault = run_fault(summary);
        EXPECT_NE(fault.find(std::string(result.name) + " at batch 0, token "), std::string::npos) << fault;
        EXPECT_NE(run_json(summary).find("\"ok\": false"), std::string::npos);
      }
}

INSTANTIATE_TEST_SUITE_P(Types, Poisoned, ::testing::Values(DType::bf16, DType::fp32),
                         [](const auto& type) { return type.param == DType::bf16 ? "bf16" : "fp32"; });

/// The figure of a whole tensor does not see late keys, whose gradients are tiny under a causal mask.
TEST(Verify, LateKeysThatAWholeTensorHidesAreNoticed) {
  const Verified& verified = causal(DType::bf16);
  for (const Result& result : {results[3], results[4]}) {
    const RunResult run = poisoned(
        verified, result, [](i64 token, i64) { return token >= tokens - 100; },
        [](double, double) { return 0.0; });
    const RunSummary summary = verified.summary_of(run);
    const std::optional<ResultError>& error =
        std::strcmp(result.name, "dk") == 0 ? summary.errors->dk : summary.errors->dv;
    EXPECT_LT(error->whole, summary.tolerance.gradient) << result.name;
    EXPECT_GT(error->rows.ratio, 10 * kernels::rounding_factor(DType::bf16, Pass::backward)) << result.name;
    const Json rows = parse_json(run_json(summary), "run").at("rows").at(result.name);
    EXPECT_GE(rows.at("token"), tokens - 100);
    EXPECT_EQ(rows.at("bound"), 4);
    EXPECT_NE(run_text(summary).find("the worst row and head"), std::string::npos);
  }
}

TEST(Verify, AGradientOfASinkIsHeldByHead) {
  const Verified& verified = causal(DType::fp32);
  RunResult run = verified.run;
  run.d_sink[1] = 0;
  EXPECT_NE(run_fault(verified.summary_of(run)).find("d_sink at batch 0, token 0, head 1"),
            std::string::npos);
}

/// A key that nobody sees and a row that sees nothing have no terms, and no room for rounding.
TEST(Verify, WhatHasNoTermsIsExactlyZero) {
  AttentionPlan plan;
  plan.shape = {1, 8, 4, 1, 1, 4, 4, DType::fp32};
  plan.mesh = {1, 2, 1};
  plan.band = {0, unbounded};
  plan.return_lse = true;
  const Documents documents = Documents::single(8, 4);
  const CallTensors tensors = random_tensors(plan, documents, 0);
  const kernels::Oracle truth = dense_attention(plan, documents, tensors, true);
  const RunResult run = run_attention(plan, documents, tensors, {}).value();
  RunSummary summary;
  summary.plan = plan;
  summary.tolerance = tolerance_of(DType::fp32);
  summary.run = run;
  summary.errors = errors_of(run, truth, DType::fp32);
  EXPECT_EQ(run_fault(summary), "");
  ASSERT_TRUE(std::isinf(truth.lse.values[0])) << "the first query sees no key";
  for (Part& part : summary.run.out)
    for (std::size_t i = 0; i < part.tokens.size(); ++i)
      if (part.tokens[i] == 0)
        *reinterpret_cast<float*>(part.rows.view().at(0, static_cast<i64>(i), 0)) = 1e-30F;
  summary.errors = errors_of(summary.run, truth, DType::fp32);
  EXPECT_TRUE(std::isinf(summary.errors->out->rows.ratio));
  EXPECT_NE(run_fault(summary).find("out at batch 0, token 0, head 0"), std::string::npos);
}

void set_element(HostTensor& tensor, i64 token, i64 head, double value) {
  HostTensor wide = tensor.as(DType::fp64);
  *reinterpret_cast<double*>(wide.view().at(0, token, head)) = value;
  tensor = wide.as(tensor.view().type);
}

TEST(Verify, TermsBeyondTheTypeAreNotVerifiable) {
  for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32}) {
    Verified verified(dtype, 64, true);
    if (dtype == DType::fp16) {  // dO . V is beyond fp16, and so is dS
      set_element(verified.tensors.d_out, 5, 1, 60000);
      set_element(verified.tensors.v, 5, 0, 60000);
    } else {
      set_element(verified.tensors.q, 5, 1, 1e38);
    }
    verified.execute();
    const RunSummary summary = verified.summary_of(verified.run);
    EXPECT_FALSE(summary.errors->verifiable());
    const std::string fault = run_fault(summary);
    EXPECT_EQ(fault.find("the run cannot be verified: "), 0U) << fault;
    EXPECT_NE(fault.find("dk at batch 0, token 0, head 0: terms overflow the type; not verifiable"),
              std::string::npos)
        << fault;
    EXPECT_NE(run_json(summary).find("\"terms overflow the type\""), std::string::npos);
    EXPECT_EQ(verdict_of(summary), RunVerdict::not_verifiable);
    EXPECT_NE(run_json(summary).find("\"verdict\": \"not_verifiable\""), std::string::npos);
    EXPECT_NE(run_text(summary).find("verdict   not verifiable: terms overflow the type"), std::string::npos);
    EXPECT_NE(run_text(summary).find("overflows (token"), std::string::npos);
  }
}

/// Every element times `factor`.
void multiply(HostTensor& tensor, double factor) {
  HostTensor wide = tensor.as(DType::fp64);
  auto* x = reinterpret_cast<double*>(wide.bytes().data());
  for (std::size_t i = 0; i < wide.bytes().size() / sizeof(double); ++i) x[i] *= factor;
  tensor = wide.as(tensor.view().type);
}

TEST(Verify, ANegativeScaleIsBoundedByItsMagnitude) {
  for (const DType dtype : {DType::bf16, DType::fp32, DType::fp64})
    for (const double scale : {-1.0, -0.25}) {
      Verified verified(dtype, 64, true);
      verified.plan.score.scale = scale;
      verified.execute();
      EXPECT_EQ(run_fault(verified.summary_of(verified.run)), "") << scale;
      for (const Result& result : results)
        for (const double terms : (verified.truth.*result.truth).terms) ASSERT_GE(terms, 0) << result.name;
      const RunResult run = poisoned(
          verified, results[2], [](i64 token, i64) { return token == 40; },
          [](double x, double allowed) { return x + 3 * allowed; });
      EXPECT_NE(run_fault(verified.summary_of(run)).find("dq at batch 0, token 40"), std::string::npos);
    }
}

/// Probabilities below the normal numbers of fp32 are 0 in the kernels.
TEST(Verify, ProbabilitiesThatUnderflowMayBeZero) {
  AttentionPlan steep;
  steep.shape = {1, 200, 200, 3, 3, 2, 2, DType::bf16};
  steep.band = {0, unbounded};
  steep.score.scale = 1000;
  AttentionPlan dropped;
  dropped.shape = {2, 100, 100, 16, 4, 32, 24, DType::bf16};
  dropped.mesh = {1, 2, 1};
  dropped.score.scale = 2;
  dropped.score.dropout = 0.99;
  dropped.score.alibi = true;
  for (const auto& [plan, seed] : {std::pair{steep, std::uint64_t{15094522162494433419U}},
                                   std::pair{dropped, std::uint64_t{1932183558737366689U}}}) {
    Verified verified(DType::bf16, 8, true);
    verified.plan = plan;
    verified.documents = Documents::single(plan.shape.q_tokens, plan.shape.q_tokens);
    verified.tensors = random_tensors(plan, verified.documents, seed);
    verified.execute();
    EXPECT_EQ(run_fault(verified.summary_of(verified.run)), "");
  }
}

TEST(Verify, SinksThatUnderflowMayHaveNoGradient) {
  Verified verified(DType::fp32, 64, true);
  verified.tensors.sink = {-90, -90};  // e^-90 < 2^-126
  verified.execute();
  ASSERT_NE(verified.truth.d_sink[1], 0);
  verified.run.d_sink = {0, 0};
  const std::string fault = run_fault(verified.summary_of(verified.run));
  EXPECT_EQ(fault.find("d_sink at"), std::string::npos) << fault;
  verified.run.d_sink = {0, 1e-30};
  EXPECT_NE(run_fault(verified.summary_of(verified.run)).find("d_sink at batch 0, token 0, head 1"),
            std::string::npos);
}

/// Where every row is within its bound so is the tensor: gradients that cancel, and results of fp16 that are
/// rounded below its normal numbers.
TEST(Verify, AWholeTensorOfRightRowsIsRight) {
  Verified vanishing(DType::fp32, 256, true);
  vanishing.plan.sink = false;
  vanishing.tensors.sink.clear();
  vanishing.plan.band = {0, 0};
  multiply(vanishing.tensors.v, 100);
  vanishing.execute();
  Verified small(DType::fp16, 256, true);
  multiply(small.tensors.d_out, 1e-6);
  small.execute();
  for (const Verified* verified : {&vanishing, &small}) {
    const RunSummary summary = verified->summary_of(verified->run);
    const ResultError& dq = *summary.errors->dq;
    EXPECT_EQ(run_fault(summary), "");
    EXPECT_GT(dq.whole, summary.tolerance.gradient);
    EXPECT_EQ(whole_bound(dq, summary.tolerance, Pass::backward), dq.allowed);
    EXPECT_EQ(parse_json(run_json(summary), "run").at("bounds").at("dq"), dq.allowed);
    RunSummary strict = summary;
    strict.tolerance.strict = true;
    EXPECT_NE(run_fault(strict).find("dq is off by"), std::string::npos);
    const RunResult run = poisoned(
        *verified, results[2], [](i64 token, i64) { return token == 200; },
        [](double x, double allowed) { return x + 3 * allowed; });
    EXPECT_NE(run_fault(verified->summary_of(run)).find("dq at batch 0, token 200"), std::string::npos);
  }
}

TEST(Verify, InputsThatAreNoNumbersAreNamed) {
  Verified verified(DType::fp32, 16, true);
  set_element(verified.tensors.k, 7, 0, std::numeric_limits<double>::quiet_NaN());
  try {
    (void)dense_attention(verified.plan, verified.documents, verified.tensors, true);
    FAIL() << "a NaN was taken";
  } catch (const InvalidInput& error) {
    EXPECT_NE(std::string(error.what()).find("k: at 'batch 0, token 7, head 0': holds nan"),
              std::string::npos)
        << error.what();
  }
}

/// Remembers what it hears, and on which thread.
struct Heard : WorkProgress {
  std::vector<i64> done;
  i64 total = 0;
  bool same_thread = true;
  const std::thread::id thread = std::this_thread::get_id();
  void reached(std::int64_t now, std::int64_t of, const char* /*units*/) override {
    done.push_back(now);
    total = of;
    same_thread = same_thread && std::this_thread::get_id() == thread;
  }
};

TEST(Verify, ProgressRunsToItsEnd) {
  for (const i64 window : {unbounded, i64{40}}) {
    const Verified verified(DType::fp32, 300, false, window);
    Heard heard;
    const kernels::Oracle truth =
        dense_attention(verified.plan, verified.documents, verified.tensors, true, &heard);
    EXPECT_EQ(truth.dq.values, verified.truth.dq.values);
    const i64 hidden = window == unbounded ? 0 : (300 - window - 1) * (300 - window) / 2;
    EXPECT_EQ(heard.total, 2 * (300 * 301 / 2 - hidden));
    EXPECT_TRUE(std::is_sorted(heard.done.begin(), heard.done.end()));
    EXPECT_EQ(heard.done.back(), heard.total);
    EXPECT_TRUE(heard.same_thread);
  }
}

TEST(Verify, ItsEffortIsKnownBefore) {
  AttentionPlan plan;
  plan.shape = {2, 100, 100, 8, 2, 16, 16, DType::bf16};
  plan.band = {0, unbounded};
  const DenseEffort effort = dense_effort(plan, Documents::single(100, 100), true);
  EXPECT_EQ(effort.scores, 2 * 8 * 5050);
  EXPECT_GE(effort.cores, 1);
  EXPECT_GT(effort.seconds, dense_effort(plan, Documents::single(100, 100), false).seconds);
  EXPECT_EQ(dense_effort(plan, Documents::packed({0, 50, 100}), true).scores, 2 * 8 * 2 * 1275);
}

}  // namespace
}  // namespace usp
