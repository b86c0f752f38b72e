// SPDX-License-Identifier: Apache-2.0
// Predictions against a published table, and what the measured PCIe curves say about the same shapes. All
// numbers are computed from data files: nothing here is timed.
#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/score_predict.hpp"
#include "usp/topology/compose.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace usp {
namespace {

const std::string table = std::string(USP_TEST_DATA) + "/measurements/usp_attention_a100_nvlink.csv";

topology::Cluster preset(const std::string& name) {
  topology::ClusterRequest request;
  request.source = name;
  return topology::compose(request);
}

std::vector<ScoreRow> rows() {
  return parse_score_csv(read_file(table), table);
}

ScoreReport score_preset(const std::string& name) {
  const topology::Cluster cluster = preset(name);
  const Calibration calibration = calibration_of(cluster);
  return score_on(cluster, calibration, rows(), table);
}

const ScoreMetrics& metrics(const ScoreReport& report, const std::string& method) {
  const auto found = std::find(report.methods.begin(), report.methods.end(), method);
  expects(found != report.methods.end(), "the method is in the report");
  return report.gated[static_cast<std::size_t>(found - report.methods.begin())];
}

TEST(ScoreA100, ReachesItsTargetsOnNvlink) {
  const ScoreReport report = score_preset("a100-sxm");
  EXPECT_EQ(report.out_of_memory, 1);
  EXPECT_TRUE(report.calibration.calibrated);
  const ScoreMetrics& ours = metrics(report, "usp");
  EXPECT_EQ(ours.ranked_groups, 21);  // of runs that waited for the device
  EXPECT_GE(ours.top1, 18);
  EXPECT_LE(ours.mean_regret, 0.005);
  // One group is a tie for us (32K zigzag: 1 x 8 and 2 x 4 within 6 %) and was measured 6.07 % apart, at 2.7
  // times the time that its kernels take.
  EXPECT_LE(ours.worst_regret, 0.061);
  EXPECT_EQ(report.noise.sets, 5);
  EXPECT_LT(report.noise.worst, 0.02);
  ASSERT_TRUE(ours.coverage && ours.median_band);
  EXPECT_LE(*ours.median_band, 0.3);
  ASSERT_EQ(report.classes.size(), 3U);  // ring, both, ulysses
  const ScoreMetrics& sheet = metrics(report, "spec-sheet alpha-beta (uncalibrated)");
  EXPECT_LE(1 - ours.tau_in_groups, 0.5 * (1 - sheet.tau_in_groups));
  EXPECT_LE(*ours.mape, 0.5 * *sheet.mape);
  EXPECT_GT(*ours.tau, *sheet.tau + 0.1);
  EXPECT_LE(ours.mean_regret, metrics(report, "most Ulysses inside the node").mean_regret);
  EXPECT_LT(ours.mean_regret, 0.2 * metrics(report, "volume rule").mean_regret);
  EXPECT_LT(ours.mean_regret, 0.02 * metrics(report, "always ring").mean_regret);
}

TEST(ScoreA100, TheLongGroupsAreAccurate) {
  const ScoreReport report = score_preset("a100-sxm");
  double error = 0;
  int count = 0;
  for (const ScoreGroup& group : report.groups)
    for (std::size_t i = 0; i < group.rows.size(); ++i)
      if (group.gated && group.tokens >= 131072) {
        error += std::abs(group.cost[0][i] / *group.rows[i]->seconds - 1);
        ++count;
      }
  EXPECT_GT(count, 60);
  EXPECT_LE(error / count, 0.09);
}

TEST(ScoreL40s, MostUlyssesLosesEveryGroupOnPcie) {
  const ScoreReport report = score_preset("l40s");
  int groups = 0;
  for (const ScoreGroup& group : report.groups) {
    if (!group.gated) continue;
    double eight = 0, worst_other = 0, best = 1e9;
    for (std::size_t i = 0; i < group.rows.size(); ++i) {
      const double seconds = group.cost[0][i];
      if (group.rows[i]->ulysses == 8)
        eight = seconds;
      else
        worst_other = std::max(worst_other, seconds);
      best = std::min(best, seconds);
    }
    if (eight == 0) continue;
    ++groups;
    // Contiguous rings waste half their kernels, which on many tokens costs as much.
    if (group.rows.front()->layout == ScoreRow::Layout::contiguous) continue;
    EXPECT_GT(eight, 1.1 * best) << group.label;
    EXPECT_GT(1.05 * eight, worst_other) << group.label;
  }
  EXPECT_GE(groups, 15);
}

/// The factor that the curves imply for U = 8 against ring 4 x ulysses 2: exchanges of all ranks at the
/// measured all-to-all of 8 ranks and of four pairs at once; four ticks of a quarter of the kernels each,
/// hops of all ranks at once beside three of them with their measured interference; merges and packing at
/// memory speed.
TEST(ScoreL40s, LosesByTheFactorTheCurvesImply) {
  const topology::Cluster cluster = preset("l40s");
  const Calibration calibration = calibration_of(cluster);
  ScorePredictor predictor(cluster, calibration, table);
  const TransferModel& comm = calibration.over_pcie();
  int checked = 0;
  for (const ScoreRow& row : rows()) {
    if (row.seq < 32768 || row.ulysses != 8 || row.layout != ScoreRow::Layout::zigzag ||
        row.exchange != ScoreRow::Exchange::qkvpack)
      continue;
    ScoreRow other = row;
    other.ring = 4;
    other.ulysses = 2;
    const double part = 2.0 * static_cast<double>(row.batch * row.seq / 8 * row.heads * row.head_dim);
    const auto exchange = [&](int ranks) {
      return comm.time(Collective::alltoall, ranks, 3 * part, 8 / ranks).seconds +
             comm.time(Collective::alltoall, ranks, part, 8 / ranks).seconds;
    };
    // The collapse itself: 22 GB/s on two ranks alone, 1.5 to 2 on eight; four pairs at once lie between.
    EXPECT_GT(exchange(8), 2 * exchange(2));
    KernelShape call;
    call.query_heads = call.kv_heads = static_cast<double>(row.batch * row.heads / 8);
    call.head_dim_qk = call.head_dim_v = static_cast<int>(row.head_dim);
    call.rows = call.key_rows = static_cast<double>(row.seq);
    call.mean_keys = 0.5 * (call.rows + 1);
    const double kernels = calibration.kernel.forward(call).seconds;
    const double pack = 2 * calibration.kernel.memory_bound(2 * 4 * part).seconds;
    const double merge =
        calibration.kernel.merge(call.query_heads * 4 * call.rows / 4, call.head_dim_v, 2).seconds;
    // Two rings side by side cross from one socket to the other.
    const double socket = 2 * 2 * part / (*cluster.nodes.front().numa_gb_s.value * 1e9);
    const double hop = std::max(comm.hop(Transport::nccl, 2 * part, 8).seconds, socket);
    const double tick = kernels / 4 + merge;
    const double beside = tick + calibration.beside(Transport::nccl).added_seconds(tick, hop);
    const double implied =
        (kernels + exchange(8) + pack) / (exchange(2) + pack + 3 * std::max(beside, hop) + tick +
                                          library_overhead_s(other, calibration.kernel));
    const double priced = predictor.seconds(row) / predictor.seconds(other);
    EXPECT_GT(priced, 1.4) << row.line;
    EXPECT_NEAR(priced / implied, 1, 0.08) << row.line << " implied " << implied << " priced " << priced;
    ++checked;
  }
  EXPECT_EQ(checked, 4);
}

TEST(ScorePredict, PcieMachinesGiveSaneNumbers) {
  for (const char* name : {"l20", "l40s", "rtx-4090", "a100-pcie"}) {
    const ScoreReport report = score_preset(name);
    for (const ScoreGroup& group : report.groups)
      for (std::size_t i = 0; i < group.rows.size(); ++i) {
        // Slower than the kernels at the card's peak, and no more than 60 times the NVLink machine.
        EXPECT_GT(group.cost[0][i], group.cost[4][i] * 0.9) << name << " line " << group.rows[i]->line;
        EXPECT_LT(group.cost[0][i], 60 * *group.rows[i]->seconds) << name;
      }
  }
}

TEST(ScorePredict, RefusesWhatItCannotPrice) {
  const topology::Cluster cluster = preset("a100-sxm");
  const Calibration calibration = calibration_of(cluster);
  ScorePredictor predictor(cluster, calibration, "t.csv");
  ScoreRow row = rows().back();
  row.line = 7;
  row.world = 16;
  row.ring = 16;
  row.ulysses = 1;
  const auto fails_at = [&](const ScoreRow& bad) {
    try {
      static_cast<void>(predictor.seconds(bad));
    } catch (const InvalidInput& error) {
      return error.where().token;
    }
    return std::string("nothing");
  };
  EXPECT_EQ(fails_at(row), "world");
  row = rows().back();
  row.heads = row.kv_heads = 4;
  row.ring = 1;
  row.ulysses = 8;
  EXPECT_EQ(fails_at(row), "ulysses");
  row.heads = 9;
  row.kv_heads = 2;
  EXPECT_EQ(fails_at(row), "kv_heads");
}

TEST(ClusterCalibration, ScalesAnotherCardAndSaysSo) {
  const Calibration own = calibration_of(preset("l40s")), scaled = calibration_of(preset("l20"));
  KernelShape call;
  call.query_heads = call.kv_heads = 8;
  call.rows = call.key_rows = 16384;
  call.mean_keys = 8192;
  const Estimate a = own.kernel.forward(call), b = scaled.kernel.forward(call);
  // L20 runs the same kernel at L40S's 180 TFLOP/s x 92 / 142 multiprocessors x clock, just below its peak.
  EXPECT_NEAR(b.seconds / a.seconds, 142.0 / 92 * 1.03, 0.1);
  EXPECT_NE(b.extrapolation & bits(Extrapolation::platform), 0U);
  EXPECT_EQ(a.extrapolation & bits(Extrapolation::platform), 0U);
}

TEST(ClusterCalibration, OwnCurvesWinAndNoNameIsAnError) {
  topology::Cluster cluster = preset("l40s");
  const double before = calibration_of(cluster).comm.time(Collective::alltoall, 8, 1 << 26).seconds;
  const auto curve = [](const char* name, int ranks, int hosts, double gb_s) {
    return topology::MeasuredCurve{name,
                                   ranks,
                                   hosts,
                                   "own.txt",
                                   {{1 << 20, 1048576 / (gb_s * 1e9)}, {1 << 26, 67108864 / (gb_s * 1e9)}}};
  };
  cluster.curves = {curve("alltoall", 8, 1, 10), curve("sendrecv", 2, 1, 5), curve("alltoall", 4, 2, 0.001)};
  const Calibration own = calibration_of(cluster);
  EXPECT_NEAR(own.comm.time(Collective::alltoall, 8, 1 << 26).seconds, 67108864 / 10e9, 1e-5);
  EXPECT_GT(before, 5 * 67108864 / 10e9);
  EXPECT_NEAR(own.comm.hop(Transport::nccl, 1 << 26).seconds, 67108864 / 5e9, 1e-4);
  EXPECT_LT(own.comm.time(Collective::alltoall, 4, 1 << 26).seconds, 1);  // two hosts: not used
  cluster.calibration.clear();
  EXPECT_THROW(static_cast<void>(calibration_of(cluster)), MissingValue);
  EXPECT_NO_THROW(static_cast<void>(calibration_of(cluster, "l40s")));
}

}  // namespace
}  // namespace usp
