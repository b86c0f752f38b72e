// SPDX-License-Identifier: Apache-2.0
#include "usp/topology/cluster_io.hpp"

#include "usp/base/error.hpp"
#include "usp/base/json.hpp"
#include "usp/base/presets.hpp"
#include "usp/topology/compose.hpp"
#include "usp/topology/devices.hpp"
#include "usp/topology/synthetic.hpp"
#include "usp/topology/validate.hpp"

#include <gtest/gtest.h>

namespace usp {
namespace {

TEST(ClusterFile, EveryPresetLoadsValidatesAndRoundTrips) {
  const auto names = preset_names("clusters");
  EXPECT_GE(names.size(), 19u);
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const auto cluster = topology::find_cluster_preset(name);
    ASSERT_TRUE(cluster);
    topology::validate(*cluster, name);
    EXPECT_EQ(cluster->name, name);
    EXPECT_TRUE(cluster->specs.at(0).bf16_tflops.known());
    EXPECT_FALSE(cluster->specs.at(0).bf16_tflops.source.empty());
    EXPECT_TRUE(cluster->nodes.at(0).pcie_gb_s.known());
    for (const topology::NvlinkDomain& domain : cluster->domains) EXPECT_TRUE(domain.gb_s.known());
    for (const topology::Nic& nic : cluster->nics) EXPECT_FALSE(nic.gb_s.source.empty());
    EXPECT_EQ(topology::read_cluster_json(topology::write_cluster_json(*cluster), "again"), *cluster);
  }
}

TEST(ClusterFile, PresetFigures) {
  const auto bandwidth = [](const char* name) {
    return *topology::find_cluster_preset(name)->domains.at(0).gb_s.value;
  };
  EXPECT_DOUBLE_EQ(bandwidth("dgx-a100"), 300);
  EXPECT_DOUBLE_EQ(bandwidth("a800-sxm"), 200);
  EXPECT_DOUBLE_EQ(bandwidth("h100"), 450);  // alias of dgx-h100
  EXPECT_DOUBLE_EQ(bandwidth("h800"), 200);
  EXPECT_DOUBLE_EQ(bandwidth("h20"), 450);
  EXPECT_DOUBLE_EQ(bandwidth("b200"), 900);
  EXPECT_DOUBLE_EQ(bandwidth("gb200-nvl72"), 900);
  EXPECT_DOUBLE_EQ(bandwidth("mi300x"), 7 * 64);
  EXPECT_EQ(topology::find_cluster_preset("l20")->calibration, "l40s");
  EXPECT_EQ(topology::find_cluster_preset("h20")->calibration, "h100_sxm");
  EXPECT_EQ(topology::find_cluster_preset("no-such"), std::nullopt);
}

TEST(ClusterFile, CurvesUnknownsAndNotesSurvive) {
  topology::Cluster cluster = topology::read_synthetic("node:2 pcie gpu:2 nic:1", "test");
  cluster.curves.push_back({"alltoall", 4, 2, "log.txt", {{1024, 1.0 / 3}, {2048, 2e-5}}});
  cluster.notes.emplace_back("a note with \"quotes\" and \xc3\xa9");
  cluster.fabric.oversubscription = {1.1, topology::Provenance::measured, "somewhere"};
  cluster.nics[0].gb_s.source = "not in the text";
  EXPECT_EQ(topology::read_cluster_json(topology::write_cluster_json(cluster), "again"), cluster);
}

/// Keys of version 2 over values of version 1: each quantity is refused at its place.
TEST(ClusterFile, ValuesInOtherUnitsAreRefused) {
  const topology::Cluster good =
      topology::read_synthetic("node:2 gpu:4(h100) numa:2 nvlink:4 nic:4(400G)", "test");
  const std::pair<const char*, double> values[] = {
      {"/specs/0/bf16_flop_per_s", 989},    {"/specs/0/fp16_flop_per_s", 989},
      {"/specs/0/fp32_flop_per_s", 67},     {"/specs/0/fp8_flop_per_s", 1979},
      {"/specs/0/memory_bytes", 80},        {"/specs/0/memory_bytes_per_s", 3350},
      {"/nodes/0/host_memory_bytes", 2000}, {"/nodes/0/pcie_bytes_per_s", 64},
      {"/nodes/0/numa_bytes_per_s", 22},    {"/nics/0/bytes_per_s", 50},
      {"/links/0/bytes_per_s", 450},        {"/links/0/latency_s", 2},
      {"/domains/0/bytes_per_s", 450},      {"/fabric/latency_s", 5}};
  for (const auto& [pointer, value] : values) {
    Json json = parse_json(topology::write_cluster_json(good), "good");
    json[Json::json_pointer(pointer)] = {{"value", value}, {"provenance", "measured"}, {"source", "test"}};
    try {
      (void)topology::read_cluster_json(json.dump(), "f");
      ADD_FAILURE() << pointer;
    } catch (const InvalidInput& error) {
      EXPECT_EQ(error.where().token, pointer) << error.what();
      EXPECT_NE(std::string(error.what()).find("SI units"), std::string::npos) << error.what();
    }
  }
}

TEST(ClusterFile, AGenerationIsAKnownWord) {
  Json json =
      parse_json(topology::write_cluster_json(topology::read_synthetic("gpu:2(a100)", "test")), "good");
  const Json::json_pointer at("/specs/0/generation");
  for (const topology::DevicePreset& card : topology::device_presets()) {
    json[at] = card.spec.generation;
    EXPECT_EQ(topology::read_cluster_json(json.dump(), "f").specs.at(0).generation, card.spec.generation);
  }
  json[at] = nullptr;
  EXPECT_EQ(topology::read_cluster_json(json.dump(), "f").specs.at(0).generation, "");
  for (const char* word : {"Hopper", "hoper", ""}) {
    json[at] = word;
    try {
      (void)topology::read_cluster_json(json.dump(), "f");
      ADD_FAILURE() << word;
    } catch (const InvalidInput& error) {
      EXPECT_EQ(error.where().token, "/specs/0/generation");
      EXPECT_NE(std::string(error.what()).find("cdna3, hopper, volta"), std::string::npos) << error.what();
    }
  }
}

TEST(ClusterFile, RefusesWhatItDoesNotKnow) {
  const std::string good =
      topology::write_cluster_json(topology::read_synthetic("gpu:2(a100) nvswitch", "test"));
  const auto broken = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const auto at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    return text;
  };
  EXPECT_NO_THROW((void)topology::read_cluster_json(good, "f"));
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"\"usp.cluster\"", "\"usp.plan\""},
           {"\"calibration\"", "\"callibration\""},
           {"\"switched\": true", "\"switched\": 1"},
           {"\"kind\": \"nvlink\"", "\"kind\": \"nvlnk\""},
           {"\"kind\": \"nvlink\"", "\"kind\": \"pix\""},  // lanes without NVLink
           {"\"b\": 1", "\"b\": 2"},
           {"\"local\": 1", "\"local\": 0"},
           {"\"nvlink_domain\": 0", "\"nvlink_domain\": null"},
           {"\"provenance\": \"preset\"", "\"provenance\": \"unknown\""},
           {"\"value\": 300000000000", "\"value\": -300000000000"}}) {
    SCOPED_TRACE(from + " -> " + to);
    if (good.find(from) == std::string::npos) continue;
    EXPECT_THROW((void)topology::read_cluster_json(broken(from, to), "f"), InvalidInput);
  }
}

TEST(ClusterFile, TruncatedFilesAreRefused) {
  const std::string good =
      topology::write_cluster_json(topology::read_synthetic("gpu:2(a100) nvswitch nic:1(100G)", "test"));
  for (std::size_t length = 0; length + 2 < good.size(); length += 7)
    EXPECT_THROW((void)topology::read_cluster_json(good.substr(0, length), "f"), InvalidInput) << length;
}

TEST(Islands, LoneDevicesAndDomains) {
  using Lists = std::vector<std::vector<int>>;
  EXPECT_EQ(topology::islands(topology::read_synthetic("gpu:4(l40s)", "t")), (Lists{{0}, {1}, {2}, {3}}));
  EXPECT_EQ(topology::islands(topology::read_synthetic("gpu:4(a100-pcie) pairs", "t")),
            (Lists{{0, 1}, {2, 3}}));
  EXPECT_EQ(topology::islands(topology::read_synthetic("gpu:8(v100) cubemesh", "t")),
            (Lists{{0, 1, 2, 3, 4, 5, 6, 7}}));
  EXPECT_EQ(topology::islands(*topology::find_cluster_preset("gb200-nvl72")).size(), 1u);
}

}  // namespace
}  // namespace usp
