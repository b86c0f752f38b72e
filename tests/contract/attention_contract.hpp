// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_cases.hpp"
#include "backends_under_test.hpp"

#include "usp/base/error.hpp"
#include "usp/kernels/backends.hpp"

#include <gtest/gtest.h>

#include <map>
#include <utility>

/// The tests of AttentionContract run on every backend, for every type it takes.
namespace usp::test {

struct Backend {
  std::size_t number;
  DType type;
  friend void PrintTo(const Backend& b, std::ostream* out) { *out << backends()[b.number].name; }
};

class AttentionContract : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    for (const std::string& name : backend().refuses)
      if (test.starts_with(name + "/")) GTEST_SKIP() << backend().name << " does not promise this";
    try {
      (void)make();
    } catch (const EnvironmentError& e) {
      GTEST_SKIP() << e.what();
    }
  }
  [[nodiscard]] static const NamedBackend& backend() { return backends()[GetParam().number]; }
  [[nodiscard]] static std::unique_ptr<kernels::AttentionKernel> make() { return backend().make(); }
  [[nodiscard]] static DType type() { return GetParam().type; }
  [[nodiscard]] static DType state() { return accumulator_of(type()); }
  [[nodiscard]] static double tolerance() { return backend().tolerance[static_cast<std::size_t>(type())]; }

  static void expect_close(const Results& a, const Results& b, double limit) {
    EXPECT_LT(error(a.o, b.o), limit) << "o";
    EXPECT_LT(error(a.lse, b.lse), limit) << "lse";
    EXPECT_LT(error(a.delta, b.delta), limit) << "delta";
    EXPECT_LT(error(a.dq, b.dq), limit) << "dq";
    EXPECT_LT(error(a.dk, b.dk), limit) << "dk";
    EXPECT_LT(error(a.dv, b.dv), limit) << "dv";
    EXPECT_LT(error(a.d_sink, b.d_sink), limit) << "d_sink";
  }

  /// What the backend rounds to on its way to a state that is not rounded.
  [[nodiscard]] static DType rounds() { return backend().rounds_steps ? type() : state(); }

  /// The truth for inputs of this type: the same rounded numbers, in fp64.
  static Results reference(const Case& c, const Inputs& in) {
    const Inputs exact(c, in);
    Trial run(c, exact);
    run.all(*kernels::make_reference_kernel());
    return run.results();
  }
  /// The same for a case of all_cases(), computed once for all backends.
  static const Results& known_reference(const Case& c, const Inputs& in) {
    static std::map<std::pair<std::string, DType>, Results> known;
    const auto [at, fresh] = known.try_emplace({c.name, type()});
    if (fresh) at->second = reference(c, in);
    return at->second;
  }
};

inline std::vector<Backend> parameters() {
  std::vector<Backend> all;
  for (std::size_t i = 0; i < backends().size(); ++i)
    for (const DType t : backends()[i].types) all.push_back({i, t});
  return all;
}

inline std::string name_of_parameter(const ::testing::TestParamInfo<Backend>& info) {
  static const char* const types[] = {"bf16", "fp16", "fp32", "fp64"};
  return backends()[info.param.number].name + "_" + types[static_cast<std::size_t>(info.param.type)];
}

}  // namespace usp::test
