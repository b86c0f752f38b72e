// SPDX-License-Identifier: Apache-2.0
#include "../contract/attention_cases.hpp"
#include "gated_trial.hpp"
#include "hopper_fixture.hpp"

#include "usp/kernels/backends.hpp"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// RMS errors of the hopper kernels, which no list of blocks may make greater, beside those of mma.
namespace usp::test {
namespace {

struct Shape {
  i64 qk, v;
  DType type;
  double softcap = 0;
};

/// Of o, dq, dk, dv.
using Errors = std::array<double, 4>;
constexpr std::array<const char*, 4> names{"o", "dq", "dk", "dv"};
constexpr double more_at_most = 1.05;

class HopperErrors : public OnHopper<testing::TestWithParam<Shape>> {
 protected:
  void SetUp() override {
    OnHopper::SetUp();
    if (IsSkipped()) return;
    case_ = causal();
    inputs_.emplace(case_, GetParam().type, GetParam().type);
    truth_ = exact(case_, *inputs_);
  }
  /// Keys in so many blocks, in one list.
  [[nodiscard]] Errors errors(Backend backend, bool deterministic, i64 blocks) {
    const auto kernel = make(backend, deterministic);
    GatedTrial run(case_, *inputs_, blocks, *memory_);
    if (backend == Backend::hopper) run.host.trial.use = backend;
    run.poison_results();
    run.attend(*kernel, false);
    run.delta(*kernel);
    run.grad(*kernel, false);
    run.bring_back();
    EXPECT_TRUE(kernel->fallbacks().empty());
    const Results r = run.host.results();
    return {error(r.o, truth_.o), error(r.dq, truth_.dq), error(r.dk, truth_.dk), error(r.dv, truth_.dv)};
  }
  static void expect_no_more(const Errors& errors, const Errors& than) {
    for (std::size_t i = 0; i < errors.size(); ++i)
      EXPECT_LE(errors[i], more_at_most * than[i]) << names[i] << ": " << errors[i] << " beside " << than[i];
  }
  static Case causal() {
    Case c = one_slice("errors", banded(256, 768, 0, unbounded), GetParam().qk);
    c.dv = GetParam().v;
    c.slices.front().q_pos = 512;
    c.query_heads = {0, 4}, c.group = 2;
    c.softcap = GetParam().softcap;
    return c;
  }
  /// In fp64, of the same rounded inputs.
  static Results exact(const Case& c, const Inputs& in) {
    const Inputs same(c, in);
    Trial run(c, same);
    run.all(*kernels::make_cpu_kernel());
    return run.results();
  }

  Case case_;
  std::optional<Inputs> inputs_;
  Results truth_;
};

TEST_P(HopperErrors, AreThoseOfMmaAtMost) {
  const Errors mma = errors(Backend::mma, false, 1);
  for (const bool deterministic : {false, true}) {
    SCOPED_TRACE(deterministic ? "deterministic" : "by atomics");
    const Errors one = errors(Backend::hopper, deterministic, 1);
    for (std::size_t i = 0; i < one.size(); ++i)
      RecordProperty(std::string(names[i]) + (deterministic ? "_deterministic" : "_atomic"),
                     std::to_string(one[i]) + " mma " + std::to_string(mma[i]));
    expect_no_more(one, mma);
    for (const i64 blocks : {8, 16}) {
      SCOPED_TRACE(blocks);
      expect_no_more(errors(Backend::hopper, deterministic, blocks), one);
    }
  }
}

std::string name_of(const testing::TestParamInfo<Shape>& info) {
  return std::to_string(info.param.qk) + "_" + std::to_string(info.param.v) +
         (info.param.type == DType::bf16 ? "_bf16" : "_fp16") + (info.param.softcap != 0 ? "_softcap" : "");
}
std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const auto& [qk, v] : {std::pair<i64, i64>{64, 64}, {128, 128}, {192, 128}, {256, 256}})
    for (const DType type : {DType::bf16, DType::fp16})
      for (const double softcap : {0.0, 3.0}) all.push_back({qk, v, type, softcap});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Shapes, HopperErrors, testing::ValuesIn(shapes()), name_of);

}  // namespace
}  // namespace usp::test
