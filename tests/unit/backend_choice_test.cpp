// SPDX-License-Identifier: Apache-2.0
// Which backend plans a call whose request names none.
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/plan_attention.hpp"
#include "usp/planner/plan_print.hpp"
#include "usp/topology/compose.hpp"
#include "usp/topology/devices.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
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
  void pack(i64 documents, i64 tokens) {
    std::vector<i64> cu_seqlens(static_cast<std::size_t>(documents) + 1);
    for (std::size_t i = 0; i < cu_seqlens.size(); ++i) cu_seqlens[i] = static_cast<i64>(i) * tokens;
    request.documents = Documents::packed(cu_seqlens);
    request.lengths.assign(static_cast<std::size_t>(documents), tokens);
  }
  /// Both passes of the best plan of a backend.
  [[nodiscard]] std::pair<double, double> seconds_of(Backend backend) {
    request.backend = backend;
    const AttentionCandidate best = answer().best();
    request.backend.reset();
    return {best.price.forward.seconds, best.price.backward.seconds};
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
  const auto passes = [&](Backend backend) { return question.seconds_of(backend); };
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
  EXPECT_EQ(price_of(result, Backend::hopper).objection, "");
  EXPECT_EQ(result.best().plan.backend, Backend::hopper);

  Question elsewhere("h200_sxm-pair", "dgx-a100");
  EXPECT_NE(price_of(elsewhere.answer(), Backend::hopper).objection.find("hopper cards"), std::string::npos);
}

TEST(BackendChoice, OneThatLeavesStepsToItsFallbackIsNoneThatWasMeasured) {
  Question packed("h200_sxm-pair");
  packed.pack(64, 256);
  const AttentionResult result = packed.answer();
  const BackendPrice& cudnn = price_of(result, Backend::cudnn);
  EXPECT_GT(cudnn.seconds, 0);
  EXPECT_NE(cudnn.objection.find("steps to mma"), std::string::npos) << cudnn.objection;
  EXPECT_NE(result.best().plan.backend, Backend::cudnn);
  const BackendPrice& both = price_of(result, Backend::hopper_cudnn);
  EXPECT_NE(both.objection.find("steps to hopper"), std::string::npos) << both.objection;
}

bool says(const std::vector<std::string>& notes, const std::string& words) {
  return std::any_of(notes.begin(), notes.end(),
                     [&](const std::string& note) { return note.find(words) != std::string::npos; });
}

TEST(BackendChoice, StepsOfManyDocumentsAndRanksAreLookedAtOnSomeRanks) {
  Question packed("h200_sxm-pair");
  packed.pack(1024, 16);
  AttentionResult result = packed.answer();
  EXPECT_FALSE(result.forward_steps.has_value()) << "too many documents to expand every rank";
  EXPECT_NE(price_of(result, Backend::cudnn).objection.find("steps to mma"), std::string::npos);
  EXPECT_EQ(result.best().plan.backend, Backend::hopper);

  Question wide("h200_sxm-pair", "node:16 nvswitch gpu:8(h200) nic:8(400G) fabric:rail");
  wide.request.shape.query_heads = 128;
  wide.request.shape.kv_heads = 8;
  wide.request.fixed.ring = 1;
  wide.request.fixed.ulysses = 128;
  result = wide.answer();
  EXPECT_NE(
      price_of(result, Backend::cudnn).objection.find("of 4 of 128 ranks to mma: a KV group spans ranks"),
      std::string::npos)
      << price_of(result, Backend::cudnn).objection;
  EXPECT_EQ(result.best().plan.backend, Backend::hopper);
}

TEST(BackendChoice, ABackendIsPricedByWhatItLeavesItsStepsTo) {
  Question question("h200_sxm-pair");
  EXPECT_NE(question.seconds_of(Backend::cudnn), question.seconds_of(Backend::mma));
  question.request.score.softcap = 30;
  EXPECT_NEAR(question.seconds_of(Backend::cudnn).first, question.seconds_of(Backend::mma).first, 1e-9);
  question.request.backend = Backend::cudnn;
  EXPECT_TRUE(says(question.answer().notes, "every step goes to the mma kernel"));
  question.request.backend.reset();

  question.request.score.softcap = 0;
  question.pack(1024, 16);
  EXPECT_NEAR(question.seconds_of(Backend::cudnn).first, question.seconds_of(Backend::mma).first, 1e-5);
  EXPECT_NEAR(question.seconds_of(Backend::hopper_cudnn).second, question.seconds_of(Backend::hopper).second,
              0.05 * question.seconds_of(Backend::hopper).second);
}

/// A rank whose heads tear a KV group leaves its steps to the fallback, and the others wait for it.
TEST(BackendChoice, TornGroupsAreThePriceOfTheFallback) {
  Question torn("h200_sxm-pair");
  torn.request.shape.query_heads = 12;
  torn.request.shape.kv_heads = 4;
  torn.request.fixed.ring = 1;
  torn.request.fixed.ulysses = 8;
  EXPECT_NEAR(torn.seconds_of(Backend::cudnn).first, torn.seconds_of(Backend::mma).first, 1e-9);
}

TEST(BackendChoice, KernelsThatWereNotMeasuredAreNamed) {
  Question question("h200_sxm-pair");
  std::erase_if(question.calibration.other_kernels, [](const auto& other) { return other.first == "mma"; });
  question.request.score.softcap = 30;
  question.request.backend = Backend::cudnn;
  EXPECT_TRUE(says(question.answer().notes,
                   "mma computes it, whose kernels calibration h200_sxm-pair did not "
                   "measure: it is priced by those of cudnn"));
}

TEST(BackendChoice, CardsOfOtherGenerationsAndVendorsRunNoBackendOfThisOne) {
  for (const bool known : {true, false}) {
    Question elsewhere("h200_sxm-pair", "mi300x");
    if (!known) elsewhere.cluster.specs.front().generation.clear();
    const AttentionResult result = elsewhere.answer();
    EXPECT_EQ(result.best().plan.backend, Backend::cpu);
    for (const BackendPrice& price : result.backends)
      EXPECT_NE(price.objection.find(known ? "mi300x is cdna3" : "generation of mi300x is not known"),
                std::string::npos)
          << price.objection;
    EXPECT_TRUE(says(result.notes, "no backend of GPUs takes this call there (mma: it is for"));
  }
  Question ampere("h200_sxm-pair", "dgx-a100");
  ampere.request.backend = Backend::hopper_cudnn;
  EXPECT_TRUE(says(ampere.answer().notes,
                   "a100-sxm is ampere; its forward goes to mma there, its backward to cudnn"));
  EXPECT_EQ(ampere.seconds_of(Backend::hopper_cudnn).first, ampere.seconds_of(Backend::mma).first);
}

TEST(BackendChoice, WhereNoneIsTakenTheNoteNamesThoseThatCould) {
  Question wide("h200_sxm-pair");
  wide.request.shape.head_dim_qk = wide.request.shape.head_dim_v = 512;
  EXPECT_TRUE(
      says(wide.answer().notes, "no backend of GPUs takes this call there (mma: the head dim exceeds"));
  Question unnamed("");
  unnamed.request.score.alibi = true;
  EXPECT_TRUE(says(unnamed.answer().notes, "backend mma makes a plan that GPUs execute"));
}

/// Generations of the table of cards that the records of backends do not speak of are those of no backend.
TEST(BackendChoice, EveryGenerationOfTheTableOfCardsIsThoughtOf) {
  const std::set<std::string> none{"volta", "cdna3"};
  for (const topology::DevicePreset& card : topology::device_presets())
    EXPECT_EQ(runs_on_generation(Backend::mma, card.spec.generation), none.count(card.spec.generation) == 0)
        << card.spec.name;
  EXPECT_FALSE(runs_on_generation(Backend::mma, ""));
  EXPECT_TRUE(runs_on_generation(Backend::hopper_cudnn, "hopper"));
  EXPECT_FALSE(runs_on_generation(Backend::hopper_cudnn, "ampere"));
}

TEST(BackendChoice, ACalibrationThatNamesNoBackendPlansForTheHost) {
  const Question question("");
  const AttentionResult result = question.answer();
  EXPECT_TRUE(result.backends.empty());
  EXPECT_EQ(result.best().plan.backend, Backend{});
}

}  // namespace
}  // namespace usp
