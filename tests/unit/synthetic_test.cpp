// SPDX-License-Identifier: Apache-2.0
#include "usp/topology/synthetic.hpp"

#include "usp/base/error.hpp"
#include "usp/topology/compose.hpp"

#include <gtest/gtest.h>

namespace usp {
namespace {

std::string refusal(const std::string& text) {
  try {
    (void)topology::read_synthetic(text, "line");
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Synthetic, FourHosts) {
  const topology::Cluster cluster =
      topology::read_synthetic("node:4 nvswitch gpu:8(h100) nic:8(400G)", "line");
  EXPECT_EQ(cluster.nodes.size(), 4u);
  EXPECT_EQ(cluster.devices.size(), 32u);
  EXPECT_EQ(cluster.domains.size(), 4u);
  EXPECT_TRUE(cluster.domains[3].switched);
  EXPECT_DOUBLE_EQ(*cluster.domains[3].gb_s.value, 450);
  EXPECT_EQ(cluster.specs.at(0).name, "h100-sxm");
  EXPECT_DOUBLE_EQ(*cluster.nics.at(31).gb_s.value, 50);
  EXPECT_EQ(cluster.devices[31].nics, std::vector<int>{31});
  EXPECT_EQ(cluster.links.size(), 4u * 28);
  EXPECT_EQ(cluster.links[0].lanes, 18);
  EXPECT_EQ(cluster.fabric.kind, topology::FabricKind::unknown);
}

TEST(Synthetic, NoCardLeavesTheCardUnknown) {
  const topology::Cluster cluster = topology::read_synthetic("gpu:8 nvswitch nic:8", "line");
  EXPECT_TRUE(cluster.specs.at(0).name.empty());
  EXPECT_FALSE(cluster.domains.at(0).gb_s.known());
  EXPECT_FALSE(cluster.nics.at(0).gb_s.known());
}

TEST(Synthetic, NicsAreDealtInBlocks) {
  const topology::Cluster shared = topology::read_synthetic("gpu:8(a100) nvswitch nic:4(100G)", "line");
  EXPECT_EQ(shared.devices[0].nics, shared.devices[1].nics);
  EXPECT_NE(shared.devices[1].nics, shared.devices[2].nics);
  const topology::Cluster many = topology::read_synthetic("gpu:8(h100) nvswitch nic:32(100G)", "line");
  EXPECT_EQ(many.devices[2].nics, (std::vector<int>{8, 9, 10, 11}));
  for (const char* odd : {"gpu:8 nic:3", "gpu:3 nic:8", "gpu:5 nic:7"}) {
    const topology::Cluster cluster = topology::read_synthetic(odd, "line");
    std::vector<int> used(cluster.nics.size(), 0);
    for (const topology::Device& device : cluster.devices) {
      EXPECT_FALSE(device.nics.empty()) << odd;
      for (int nic : device.nics) ++used[static_cast<std::size_t>(nic)];
    }
    for (int count : used) EXPECT_GT(count, 0) << odd;
  }
}

TEST(Synthetic, Islands) {
  const topology::Cluster cluster =
      topology::read_synthetic("gpu:8(h200-nvl) numa:2 nvlink:4 nic:2(200G)", "line");
  ASSERT_EQ(cluster.domains.size(), 2u);
  EXPECT_EQ(cluster.domains[1].devices, (std::vector<int>{4, 5, 6, 7}));
  EXPECT_FALSE(cluster.domains[0].switched);
  EXPECT_EQ(cluster.links[0].lanes, 6);  // 18 links over three neighbours
  EXPECT_DOUBLE_EQ(*cluster.links[0].gb_s.value, 150);
  EXPECT_EQ(topology::read_synthetic("gpu:4(a100-pcie) pairs", "line").links.at(0).lanes, 12);
  EXPECT_EQ(topology::read_synthetic("gpu:4(a100) nvlink:4(4)", "line").links.at(0).lanes, 4);
}

TEST(Synthetic, FabricsAndRacks) {
  const topology::Cluster tree =
      topology::read_synthetic("fabric:fat_tree(2,4) node:6 gpu:1(l40s) nic:1(50GB/s)", "line");
  EXPECT_EQ(tree.fabric.leaves, (std::vector<std::vector<int>>{{0, 1, 2, 3}, {4, 5}}));
  EXPECT_DOUBLE_EQ(*tree.fabric.oversubscription.value, 2);
  const topology::Cluster racks = topology::read_synthetic("node:36 nvswitch:72 gpu:4(gb200)", "line");
  ASSERT_EQ(racks.domains.size(), 2u);
  EXPECT_EQ(racks.domains[1].devices.front(), 72);
}

TEST(Synthetic, ErrorsNameTokenAndColumn) {
  const std::string text = refusal("node:2 nvswich gpu:8(h100)");
  EXPECT_NE(text.find("'nvswich'"), std::string::npos) << text;
  EXPECT_NE(text.find("column 8"), std::string::npos) << text;
  EXPECT_NE(text.find("'nvswitch'"), std::string::npos) << text;
  for (const char* bad : {"",
                          "node:2",
                          "gpu:0",
                          "gpu:x",
                          "gpu:-1",
                          "gpu:8 gpu:8",
                          "gpu:8(h1000)",
                          "gpu:8(",
                          "gpu:8()",
                          "gpu:8)",
                          "gpu:8(h100)x",
                          "gpu(h100)",
                          "gpu:",
                          "gpu:8 nic:8(400)",
                          "gpu:8 nic:8(-1G)",
                          "gpu:8 pcie nvswitch",
                          "gpu:8 nvlink:3",
                          "gpu:8 nvlink",
                          "gpu:8 nvswitch:5",
                          "gpu:4 cubemesh",
                          "gpu:8 fabric:mesh",
                          "gpu:8 fabric:fat_tree(0.5)",
                          "gpu:8 fabric:fat_tree(2,0)",
                          "gpu:8 fabric:fat_tree(2",
                          "gpu:8 pcie(1)",
                          "gpu:8 numa:2(3)",
                          "gpu:8(l40s) nvswitch",
                          "gpu:1024 node:65536",
                          "gpu:8 fabric",
                          "gpu:8.5",
                          "gpu:8(v100) nvlink:8(2)",
                          "gpu:8 lanes:999"})
    EXPECT_NE(refusal(bad), "accepted") << bad;
}

/// A few words can ask for billions of links or NICs: refused before they are laid out.
TEST(Synthetic, SizesAreBoundedBeforeTheyAreLaidOut) {
  const auto refused = [](const std::string& text, const std::string& words) {
    try {
      static_cast<void>(topology::read_synthetic(text, "f"));
      ADD_FAILURE() << text;
    } catch (const InvalidInput& error) {
      EXPECT_NE(error.problem().find(words), std::string::npos) << error.what();
    }
  };
  refused("node:8192 nvswitch:65536 gpu:8", "2147450880 links; the most is 1048576");
  refused("node:65536 gpu:1 nic:1024", "67108864 NICs; the most is 262144");
  refused("node:64 gpu:1024 numa:2", "33521664 links");
  refused("node:65536 gpu:2", "131072 devices; the most is 65536");
  refused("gpu:8 " + std::string(1 << 16, ' '), "64 KiB");
  EXPECT_EQ(topology::read_synthetic("node:400 gpu:72 nvswitch", "f").links.size(), 400U * 72 * 71 / 2);
  const topology::Cluster cluster = topology::read_synthetic("gpu:1024 nvswitch", "f");
  EXPECT_THROW(static_cast<void>(topology::replicate(cluster, 3, "--nodes")), UsageError);
}

}  // namespace
}  // namespace usp
