// SPDX-License-Identifier: Apache-2.0
// Which kernels of a calibration of several backends a measured call corrects.
#include "usp/base/error.hpp"
#include "usp/base/presets.hpp"
#include "usp/planner/calibration_add.hpp"
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/score_predict.hpp"
#include "usp/topology/compose.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <string>
#include <utility>

namespace usp {
namespace {

/// Three backends of an H200, on a cluster of the calibration's name.
struct ThreeBackends {
  topology::Cluster cluster = topology::compose({.source = "h200"});
  CalibrationFile content =
      read_calibration_file(file_or_preset("calibrations", "h200_sxm-pair").text, "h200_sxm-pair");

  ThreeBackends() { content.cluster = cluster.name; }
  [[nodiscard]] static ScoreRow row(Backend backend, ScoreRow::Direction direction) {
    ScoreRow row;
    row.world = row.ring = row.ulysses = 1;
    row.batch = 1;
    row.seq = 16384;
    row.heads = row.kv_heads = 8;
    row.head_dim = 128;
    row.exchange = ScoreRow::Exchange::no_packed;
    row.library = ScoreRow::Library::usp;
    row.backend = backend;
    row.direction = direction;
    return row;
  }
  [[nodiscard]] double priced(const CalibrationFile& file, const ScoreRow& row) const {
    const Calibration calibration = calibration_from(file);
    return ScorePredictor(cluster, calibration, "x").seconds(row);
  }
  [[nodiscard]] CorrectedCalibration added(const ScoreRow& row) const {
    return add_rows(content, cluster, {row}, "x");
  }
};

TEST(CalibrationBackends, ACallCorrectsTheKernelsOfTheBackendThatComputedIt) {
  using D = ScoreRow::Direction;
  const ThreeBackends h200;
  const struct {
    Backend backend;
    D direction;
    const char* kernels;
  } cases[] = {{Backend::cudnn, D::forward, "cudnn"},
               {Backend::mma, D::forward_backward, "mma"},
               {Backend::hopper, D::backward, "hopper"},
               {Backend::hopper_cudnn, D::forward, "hopper"},
               {Backend::hopper_cudnn, D::backward, "cudnn"}};
  for (const auto& c : cases) {
    ScoreRow row = ThreeBackends::row(c.backend, c.direction);
    row.seconds = 1.2 * h200.priced(h200.content, row);
    const CorrectedCalibration corrected = h200.added(row);
    ASSERT_EQ(corrected.corrections.size(), 1U);
    EXPECT_EQ(corrected.corrections[0].curve, std::string("kernels of ") + c.kernels);
    EXPECT_NEAR(h200.priced(corrected.content, row), *row.seconds, 1e-6);
    for (const Backend other : {Backend::cudnn, Backend::mma, Backend::hopper}) {
      const ScoreRow alone = ThreeBackends::row(other, D::forward);
      const double before = h200.priced(h200.content, alone), after = h200.priced(corrected.content, alone);
      EXPECT_EQ(before != after, other->word == c.kernels) << word_of(c.backend) << " " << word_of(other);
    }
  }
  ScoreRow unnamed = ThreeBackends::row(Backend::cudnn, D::forward);
  unnamed.backend.reset();
  unnamed.seconds = 1.2 * h200.priced(h200.content, unnamed);
  EXPECT_EQ(h200.added(unnamed).corrections[0].curve, "kernels of cudnn") << "what plans take first";
}

TEST(CalibrationBackends, CallsOfNoMeasuredKernelAreRefusedWithTheReason) {
  using D = ScoreRow::Direction;
  ThreeBackends h200;
  const auto refused = [&](ScoreRow row, const char* token, const std::string& why) {
    row.seconds = 1;
    try {
      static_cast<void>(h200.added(row));
      ADD_FAILURE() << why;
    } catch (const InvalidInput& error) {
      EXPECT_EQ(error.where().token, token);
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  ScoreRow wide = ThreeBackends::row(Backend::cudnn, D::forward);
  wide.head_dim = 512;
  refused(wide, "backend", "head dims up to 256, not 512");
  wide.backend.reset();
  refused(wide, "backend", "head dims up to 256, not 512");
  refused(ThreeBackends::row(Backend::hopper_cudnn, D::forward_backward), "direction",
          "forward was computed by hopper and backward by cudnn");
  ScoreRow library = ThreeBackends::row(Backend::cudnn, D::forward);
  library.library = ScoreRow::Library::yunchang;
  refused(library, "library", "another library");
  std::erase_if(h200.content.other_attention, [](const auto& other) { return other.backend == "mma"; });
  refused(ThreeBackends::row(Backend::mma, D::forward), "backend",
          "computed by mma, whose kernels calibration h200_sxm-pair did not measure (it has cudnn, hopper)");
  refused(ThreeBackends::row(Backend::cpu, D::forward), "backend", "computed by cpu");
}

/// Of the table: 64K tokens, 32 heads of 8 KV heads, a ring of 2, forward, 34.5 a second. Its transfers are
/// hidden, and the kernels are a few percent off.
TEST(CalibrationBackends, ADifferenceOfKernelsCorrectsNoTransfers) {
  topology::Cluster cluster = topology::compose({.source = "h200", .gpus = 2});
  const CalibrationFile content =
      read_calibration_file(file_or_preset("calibrations", "h200_sxm-pair").text, "h200_sxm-pair");
  cluster.name = content.cluster;
  ScoreRow row = ThreeBackends::row(Backend::cudnn, ScoreRow::Direction::forward);
  row.world = row.ring = 2;
  row.layout = ScoreRow::Layout::zigzag;
  row.transport = Transport::copy_engine;
  row.causal = true;
  const auto price = [&](const CalibrationFile& of) {
    const Calibration calibration = calibration_from(of);
    ScorePredictor predictor(cluster, calibration, "x");
    return std::pair(predictor.seconds(row), predictor.band(row));
  };
  const auto refused = [&](const char* why) {
    try {
      static_cast<void>(add_rows(content, cluster, {row}, "x"));
      ADD_FAILURE() << why;
    } catch (const InvalidInput& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  row.seq = 65536;
  row.heads = 32;
  row.kv_heads = 8;
  row.seconds = 1 / 34.5011;
  refused("says nothing of hops of 2 ranks");
  row.seconds = price(content).first;
  refused("says nothing of hops of 2 ranks");
  row.seconds = 1.5 * price(content).first;  // more than kernels explain, and than slower hops do
  refused("hops of 2 ranks up to 4 times as fast");

  row.seq = 2048;  // transfers take most of the time
  row.heads = row.kv_heads = 64;
  const auto [before_s, before_band] = price(content);
  row.seconds = 1.8 * before_s;
  const CorrectedCalibration corrected = add_rows(content, cluster, {row}, "x");
  EXPECT_GT(corrected.corrections[0].factor, 1.5);
  EXPECT_LE(corrected.corrections[0].factor, 4);
  EXPECT_NEAR(price(corrected.content).first / *row.seconds, 1, 1e-3);
  EXPECT_GE(price(corrected.content).second, before_band);
  EXPECT_GT(corrected.content.repeatability.from_1mib, content.repeatability.from_1mib);
}

TEST(CalibrationBackends, BackendsThatAreNotMeasuredByThemselvesAreRefused) {
  const std::string good = file_or_preset("calibrations", "h200_sxm-pair").text;
  const auto refused = [](std::string text, const std::string& from, const std::string& to, const char* why) {
    const auto at = text.find(from);
    ASSERT_NE(at, std::string::npos);
    text.replace(at, from.size(), to);
    try {
      static_cast<void>(parse_calibration(text, "x"));
      ADD_FAILURE() << to;
    } catch (const InvalidInput& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  refused(good, "\"backend\": \"cudnn\"", "\"backend\": \"hopper_cudnn\"", "its parts are measured");
  refused(good, "\"backend\": \"mma\"", "\"backend\": \"cpu\"", "cpu computes on hosts");
  refused(good, "\"class\": \"nvswitch\"", "\"class\": \"host\"", "cudnn computes on GPUs");
}

/// One GPU has no peers: other links of its class lend their curves, as where only the rate differs, whether
/// the calibration says that it is of this cluster or not, and of which class its links are or not.
TEST(CalibrationBackends, KernelsWithoutTransfersBorrowTheCurvesOfTheirLinks) {
  ThreeBackends h200;
  const std::string own = h200.cluster.name;
  h200.content.collectives.clear();
  h200.content.point_to_point.clear();
  const std::string file = ::testing::TempDir() + "kernels_alone.json";
  std::optional<double> seconds;
  for (const std::string& cluster : {std::string("one card"), std::string(), own})
    for (const bool links : {true, false}) {
      CalibrationFile content = h200.content;
      content.cluster = cluster;
      if (!links) content.links.reset();
      std::ofstream(file) << write_calibration(content);
      const Calibration calibration = calibration_of(h200.cluster, file);
      ASSERT_TRUE(calibration.comm.has(Collective::alltoall)) << cluster << links;
      EXPECT_NE(calibration.link_lender, "");
      EXPECT_GT(calibration.link_band, 0);
      EXPECT_TRUE(calibration.measured(Backend::hopper_cudnn));
      const double time = calibration.comm.time(Collective::alltoall, 8, 1 << 26).seconds;
      EXPECT_EQ(time, seconds.value_or(time)) << cluster << links;
      seconds = time;
    }
}

}  // namespace
}  // namespace usp
