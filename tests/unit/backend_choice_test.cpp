// SPDX-License-Identifier: Apache-2.0
// Which backend plans a call whose request names none.
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/plan_attention.hpp"
#include "usp/planner/plan_print.hpp"
#include "usp/topology/compose.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace usp {
namespace {

/// A call on two devices of a cluster, by a calibration; empty: the cluster's own.
struct Question {
  topology::Cluster cluster;
  Calibration calibration;
  AttentionRequest request;

  explicit Question(const std::string& calibration_name, const std::string& source = "h200") {
    topology::ClusterRequest asked;
    asked.source = source;
    cluster = topology::compose(asked);
    calibration = calibration_of(cluster, calibration_name);
    request.cluster = &cluster;
    request.calibration = &calibration;
    request.shape = {1, 16384, 16384, 16, 16, 128, 128, DType::bf16};
    request.documents = Documents::single(16384, 16384);
    request.fixed.ring = 2;
    request.fixed.ulysses = 1;
    request.fixed.head_chunks = 1;
  }
  Question(const Question&) = delete;
  Question& operator=(const Question&) = delete;
  [[nodiscard]] AttentionResult answer() const { return plan_attention(request); }
};

const BackendPrice& price_of(const AttentionResult& result, Backend backend) {
  const auto found = std::find_if(result.backends.begin(), result.backends.end(),
                                  [&](const BackendPrice& price) { return price.backend == backend; });
  EXPECT_NE(found, result.backends.end()) << word_of(backend);
  return *found;
}

TEST(BackendChoice, TheFastestOfThoseThatWereMeasuredIsTaken) {
  Question question("h200_sxm-pair");
  for (const bool training : {true, false}) {
    question.request.training = training;
    const AttentionResult result = question.answer();
    ASSERT_EQ(result.backends.size(), 4U);  // and both passes by the faster of two
    EXPECT_EQ(result.backends.front().backend, result.best().plan.backend);
    for (const BackendPrice& price : result.backends) {
      EXPECT_TRUE(price.objection.empty()) << price.objection;
      EXPECT_GE(price.seconds, result.best().seconds());
      question.request.backend = price.backend;
      const AttentionResult named = question.answer();
      EXPECT_EQ(named.best().seconds(), price.seconds) << word_of(price.backend);
      EXPECT_TRUE(named.backends.empty()) << "one was asked for";
      question.request.backend.reset();
    }
    EXPECT_EQ(make_plan_file(question.request, result.best()).layers.front().plan.backend,
              result.backends.front().backend);
    EXPECT_NE(attention_text(question.request, result).find("fastest by the calibration; "),
              std::string::npos);
    EXPECT_TRUE(price_of(result, Backend::hopper).tie || price_of(result, Backend::cudnn).tie);
    EXPECT_FALSE(price_of(result, Backend::mma).tie) << "its kernels take twice as long";
    EXPECT_NE(attention_result_json(question.request, result).find("\"slower\": "), std::string::npos);
  }
}

TEST(BackendChoice, PassesOfTwoBackendsAreTheirs) {
  Question question("h200_sxm-pair");
  const auto passes = [&](Backend backend) {
    question.request.backend = backend;
    const AttentionCandidate best = question.answer().best();
    return std::pair(best.price.forward.seconds, best.price.backward.seconds);
  };
  const auto both = passes(Backend::hopper_cudnn);
  EXPECT_EQ(both.first, passes(Backend::hopper).first);
  EXPECT_EQ(both.second, passes(Backend::cudnn).second);
  EXPECT_FALSE(load_calibration("h200_sxm-cudnn-9.19").measured(Backend::hopper_cudnn));
}

TEST(BackendChoice, OneThatDoesNotTakeTheCallIsNamedWithItsReason) {
  Question capped("h200_sxm-pair");
  capped.request.score.softcap = 30;
  const AttentionResult result = capped.answer();
  const BackendPrice& cudnn = price_of(result, Backend::cudnn);
  EXPECT_EQ(cudnn.seconds, 0);
  EXPECT_NE(cudnn.objection.find("softcap"), std::string::npos) << cudnn.objection;
  EXPECT_NE(result.best().plan.backend, Backend::cudnn);

  Question elsewhere("h200_sxm-pair", "dgx-a100");
  EXPECT_NE(price_of(elsewhere.answer(), Backend::hopper).objection.find("hopper cards"), std::string::npos);
}

TEST(BackendChoice, OneThatLeavesStepsToItsFallbackIsNoneThatWasMeasured) {
  Question packed("h200_sxm-pair");
  std::vector<i64> cu_seqlens(65);
  for (std::size_t i = 0; i < cu_seqlens.size(); ++i) cu_seqlens[i] = static_cast<i64>(i) * 256;
  packed.request.documents = Documents::packed(cu_seqlens);
  packed.request.lengths.assign(64, 256);
  const AttentionResult result = packed.answer();
  const BackendPrice& cudnn = price_of(result, Backend::cudnn);
  EXPECT_GT(cudnn.seconds, 0);
  EXPECT_NE(cudnn.objection.find("steps to mma"), std::string::npos) << cudnn.objection;
  EXPECT_NE(result.best().plan.backend, Backend::cudnn);
  const BackendPrice& both = price_of(result, Backend::hopper_cudnn);
  EXPECT_NE(both.objection.find("steps to hopper"), std::string::npos) << both.objection;
}

TEST(BackendChoice, ACalibrationThatNamesNoBackendPlansForTheHost) {
  const Question question("");
  const AttentionResult result = question.answer();
  EXPECT_TRUE(result.backends.empty());
  EXPECT_EQ(result.best().plan.backend, Backend{});
}

}  // namespace
}  // namespace usp
