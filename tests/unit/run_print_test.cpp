// SPDX-License-Identifier: Apache-2.0
// What usp run says of steps that went to another backend than their plan says.
#include "usp/runtime/run_print.hpp"

#include "usp/base/json.hpp"

#include <gtest/gtest.h>

namespace usp {
namespace {

RunSummary summary_of(const std::vector<std::vector<kernels::BackendFallback>>& ranks) {
  RunSummary summary;
  summary.plan.mesh = {1, 1, static_cast<int>(ranks.size())};
  summary.plan.backend = Backend::cudnn;
  summary.run.kernel = "cudnn";
  summary.run.communicator = "threads";
  summary.run.training = false;
  for (const std::vector<kernels::BackendFallback>& fallbacks : ranks) {
    RankResult rank;
    rank.seconds[0] = {1e-3};
    rank.fallbacks = fallbacks;
    summary.run.ranks.push_back(rank);
  }
  return summary;
}

TEST(RunPrint, DeparturesAreSummedOverRanksByStepAndReason) {
  const RunSummary summary = summary_of({{{Pass::forward, schedule::UnsupportedReason::alignment, 2}},
                                         {{Pass::forward, schedule::UnsupportedReason::alignment, 3},
                                          {Pass::backward, schedule::UnsupportedReason::deterministic, 1}}});
  const std::string text = run_text(summary);
  EXPECT_NE(text.find("5 attend calls fell back from cuDNN to the mma kernel, the plan expected none: "
                      "tensor rows are not aligned to 16 bytes\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("1 attend_grad call fell back from cuDNN to the mma kernel, the plan expected none: "),
            std::string::npos)
      << text;
  const Json json = parse_json(run_json(summary), "run").at("fallbacks");
  ASSERT_EQ(json.size(), 2U);
  EXPECT_EQ(json[0].at("step"), "attend");
  EXPECT_EQ(json[0].at("count"), 5);
  EXPECT_EQ(json[1].at("reason"),
            schedule::text_of(schedule::UnsupportedReason::deterministic, Backend::cudnn));
}

TEST(RunPrint, ARunAsPlannedSaysNothingOfBackends) {
  const RunSummary summary = summary_of({{}, {}});
  EXPECT_EQ(run_text(summary).find("fell back"), std::string::npos);
  EXPECT_TRUE(parse_json(run_json(summary), "run").at("fallbacks").empty());
}

}  // namespace
}  // namespace usp
