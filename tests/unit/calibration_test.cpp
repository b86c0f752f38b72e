// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/calibration.hpp"

#include "usp/base/error.hpp"
#include "usp/base/presets.hpp"

#include <gtest/gtest.h>

namespace usp {
namespace {

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Calibration, EveryShippedFileLoadsAndNamesItsSources) {
  for (const std::string& name : preset_names("calibrations")) {
    const Calibration c = load_calibration(name);
    EXPECT_EQ(c.name, name);
    EXPECT_TRUE(c.calibrated);
    const CalibrationSummary s = c.summary(bits(Extrapolation::backward));
    const bool own = !c.cluster.empty();  // by usp calibrate, with short calls among the few of its grid
    ASSERT_GE(s.sources.size(), 2U);
    EXPECT_NE(s.sources[0].find(own ? "own measurement" : "Apache-2.0"), std::string::npos);
    EXPECT_GT(s.kernel_error, 0.002);
    EXPECT_LT(s.kernel_error, own ? 0.1 : 0.07);
    EXPECT_LT(s.comm_error, 0.08) << name;
    EXPECT_EQ(s.extrapolations.size(), 1U);
    EXPECT_LT(file_or_preset("calibrations", name).text.size(), 20000U);
  }
}

TEST(Calibration, TheReaderRefusesWhatItDoesNotKnow) {
  const std::string good = file_or_preset("calibrations", "h100_sxm").text;
  EXPECT_NO_THROW(static_cast<void>(parse_calibration(good, "x")));
  const std::pair<const char*, const char*> faults[] = {
      {"\"usp.calibration\"", "\"usp.cluster\""},
      {"\"version\": 2", "\"version\": 2, \"colour\": 3"},
      {"\"operation\": \"alltoall\"", "\"operation\": \"broadcast\""},
      {"\"ranks\": 2", "\"ranks\": 1"},
      {"\"ranks\": 2", "\"ranks\": 4"},
      {"\"first_bytes\": 512", "\"first_bytes\": 512.5"},
      {"\"transport\": \"nccl\"", "\"transport\": \"copy_engine\""},
      {"\"bytes_per_s\": 349000000000", "\"bytes_per_s\": 3490000000000"},
      {"\"sm_count\": 132", "\"sm_count\": 0"},
      {"\"peak_flop_per_s\": ", "\"peak_flop_per_s\": -"},
      {"\"peak_flop_per_s\": ", "\"peak_flop_per_s\": 0.000000000"},
      {"\"bytes_per_s\": 349000000000", "\"bytes_per_s\": 349"},
      {"\"time_s\": [", "\"time_s\": [12.5, "},
      {"\"head_dim\": 64", "\"head_dim\": 128"},
      {"\"tile_rows\": 128,", ""},
      {"\"measured_tokens\": [512, 16384]", "\"measured_tokens\": [16384, 512]"},
      {"\"licence\": \"Apache-2.0\",", ""},
  };
  for (const auto& [from, to] : faults) {
    const std::string text = replaced(good, from, to);
    EXPECT_THROW(static_cast<void>(parse_calibration(text, "x")), InvalidInput) << from << " -> " << to;
  }
  EXPECT_THROW(static_cast<void>(load_calibration("h100_smx")), InvalidInput);
  EXPECT_THROW(static_cast<void>(parse_calibration(good.substr(0, good.size() / 2), "x")), InvalidInput);
}

TEST(Calibration, AnNcclTransferCostsAttentionMoreThanACopyEngine) {
  const Calibration c = load_calibration("h100_sxm");
  // 8192 x 8192, 64 MiB beside it: 0.861 -> 1.015 ms with NCCL, 0.894 -> 0.92 to 0.94 with the copy engine.
  const double nccl = c.beside(Transport::nccl).added_seconds(0.861e-3, 0.377e-3);
  EXPECT_NEAR(nccl, 0.154e-3, 0.03e-3);
  const double copy = c.beside(Transport::copy_engine).added_seconds(0.894e-3, 0.192e-3);
  EXPECT_GT(copy, 0.01e-3);
  EXPECT_LT(copy, 0.05e-3);
  EXPECT_LT(c.beside(Transport::nccl).added_seconds(1e-6, 1), 1e-6);
}

TEST(Calibration, InterNodeEfficienciesComeWithARange) {
  for (const Efficiency& share : {inter_node_alltoall_efficiency(true), inter_node_alltoall_efficiency(false),
                                  inter_node_hop_efficiency()}) {
    EXPECT_LT(share.low, share.value);
    EXPECT_GT(share.high, share.value);
  }
  // 16 MB over 400 Gb/s: 336 us of wire.
  EXPECT_NEAR(16.8e6 / (50e9 * inter_node_hop_efficiency().value), 373e-6, 5e-6);
  EXPECT_GT(inter_node_alltoall_efficiency(false).band(), 1.2);  // other fabrics: seen at a third of it
  EXPECT_NEAR(inter_node_ring_efficiency(2, 1 << 28).value, 0.85, 1e-9);
  EXPECT_NEAR(inter_node_ring_efficiency(128, 1 << 24).value, 0.0087, 1e-9);
  for (int nodes = 2; nodes <= 300; ++nodes) {
    double before = 0;
    for (double bytes = 1; bytes < 1e12; bytes *= 1.5) {
      const double seconds = bytes / inter_node_ring_efficiency(nodes, bytes).value;
      EXPECT_GE(seconds * (1 + 1e-9), before) << nodes << " " << bytes;
      before = seconds;
    }
  }
}

}  // namespace
}  // namespace usp
