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

/// @param calibration empty: the cluster's own
/// @param name of the cluster: where the calibration's, it is the one that was measured
ScoreReport scored(const std::string& calibration, const std::string& name = "") {
  const std::string table = std::string(USP_TEST_DATA) + "/measurements/usp_attention_2xh200.csv";
  topology::ClusterRequest request;
  request.source = "h200";
  topology::Cluster cluster = topology::compose(request);
  if (!name.empty()) cluster.name = name;
  return score_on(cluster, calibration_of(cluster, calibration), parse_score_csv(read_file(table), table),
                  table);
}

TEST(ScoreH200, ChoosesTheFasterMeshOfEveryPairAndForeseesItsTime) {
  // FA3's kernels, and cuDNN's, which ran: at the clock that calls back to back leave the card.
  for (const char* calibration : {"", "h200_sxm-cudnn-9.19"}) {
    const ScoreReport report = scored(calibration);
    ASSERT_EQ(report.methods.front(), "usp");
    EXPECT_TRUE(report.calibration.calibrated);
    EXPECT_EQ(report.groups.size(), 8U);
    const ScoreMetrics& ours = report.gated.front();
    EXPECT_EQ(ours.ranked_groups, 6);
    EXPECT_EQ(ours.top1, 6);
    EXPECT_LE(*ours.mape, 0.05) << calibration;
    EXPECT_GE(*ours.coverage, 0.9) << calibration;
  }
}

/// A pair of H200 by what `usp calibrate` measured on it, a day after the calls.
TEST(ScoreH200, APairIsForeseenByItsOwnCalibration) {
  for (const char* cluster : {"h200-pair", ""}) {
    const ScoreReport report = scored("h200_sxm-pair", cluster);
    const ScoreMetrics &gated = report.gated.front(), &shorter = report.shorter.front();
    EXPECT_EQ(gated.rows, 12);
    EXPECT_LE(*gated.mape, 0.08) << cluster;
    EXPECT_LE(gated.mean_regret, 0.005) << cluster;
    EXPECT_GE(*gated.coverage, 0.9) << cluster;
    EXPECT_LE(*shorter.mape, 0.12) << cluster;
  }
}

}  // namespace
}  // namespace usp
