// SPDX-License-Identifier: Apache-2.0
// Predictions with the shipped calibration against what the runtime took on two H200, both passes. All
// numbers are computed from data files: nothing here is timed.
#include "usp/base/file.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/score_predict.hpp"
#include "usp/topology/compose.hpp"

#include <gtest/gtest.h>

#include <string>

namespace usp {
namespace {

TEST(ScoreH200, ChoosesTheFasterMeshOfEveryPairAndForeseesItsTime) {
  const std::string table = std::string(USP_TEST_DATA) + "/measurements/usp_attention_2xh200.csv";
  topology::ClusterRequest request;
  request.source = "h200";
  const topology::Cluster cluster = topology::compose(request);
  const ScoreReport report =
      score_on(cluster, calibration_of(cluster), parse_score_csv(read_file(table), table), table);
  ASSERT_EQ(report.methods.front(), "usp");
  EXPECT_TRUE(report.calibration.calibrated);
  EXPECT_EQ(report.groups.size(), 8U);
  const ScoreMetrics& ours = report.gated.front();
  EXPECT_EQ(ours.ranked_groups, 6);
  EXPECT_EQ(ours.top1, 6);
  EXPECT_LE(*ours.mape, 0.08);
}

}  // namespace
}  // namespace usp
