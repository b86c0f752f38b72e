// SPDX-License-Identifier: Apache-2.0
// The readers of flags, tables, arrays and variables against their corpora and damaged versions of them.
#include "properties_flags.hpp"
#include "properties_launch.hpp"
#include "properties_lists.hpp"
#include "properties_npy.hpp"
#include "properties_tables.hpp"
#include "replay.hpp"

namespace usp::fuzz {
namespace {

TEST(FlagsMutation, Synthetic) {
  replay("synthetic", synthetic, 60);
}
TEST(FlagsMutation, Fabric) {
  replay("fabric", fabric, 2000);
}
TEST(FlagsMutation, Units) {
  replay("units", units, 2000);
}
TEST(FlagsMutation, Nic) {
  replay("nic", nic, 1000);
}
TEST(FlagsMutation, DeviceList) {
  replay("device_list", device_list, 2000);
}
TEST(FlagsMutation, Sweep) {
  replay("sweep", sweep, 500);
}
TEST(FlagsMutation, DocumentLengths) {
  replay("document_lengths", document_lengths, 2000);
}
TEST(FlagsMutation, ScoreCsv) {
  replay("score_csv", score_csv, 2000);
}
TEST(FlagsMutation, Calibration) {
  const auto seeds = seeds_of(std::string(USP_CONFIGS) + "/calibrations");
  for (const Seed& seed : seeds)
    if (seed.name.find(".json") != std::string::npos) {
      EXPECT_TRUE(calibration(seed.content)) << seed.name;
    }
  replay("calibration", calibration, 200);
}
TEST(FlagsMutation, Npy) {
  replay("npy", npy, 2000);
}
TEST(FlagsMutation, Launch) {
  replay("launch", launch, 2000);
}

}  // namespace
}  // namespace usp::fuzz
