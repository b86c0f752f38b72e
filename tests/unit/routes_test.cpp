// SPDX-License-Identifier: Apache-2.0
#include "usp/topology/routes.hpp"

#include "usp/base/error.hpp"
#include "usp/topology/cluster_io.hpp"
#include "usp/topology/compose.hpp"
#include "usp/topology/synthetic.hpp"

#include <gtest/gtest.h>

namespace usp {
namespace {

topology::Cluster described(const std::string& text) {
  return topology::read_synthetic(text, "line");
}

/// Seconds of an all-to-all among `devices` in which each sends `bytes` to every other.
double exchange_s(const topology::Cluster& cluster, const std::vector<int>& devices, double bytes) {
  const topology::LinkTable table(cluster);
  std::vector<topology::TransferLoad> transfers;
  for (int a : devices)
    for (int b : devices)
      if (a != b) transfers.push_back({a, b, bytes});
  return table.busiest_s(topology::loads(table, transfers));
}

std::vector<int> first(int count) {
  std::vector<int> ids;
  for (int i = 0; i < count; ++i) ids.push_back(i);
  return ids;
}

std::vector<topology::ResourceKind> kinds(const topology::LinkTable& table, int a, int b) {
  std::vector<topology::ResourceKind> result;
  for (const topology::RouteHop& hop : topology::route(table, a, b))
    result.push_back(table.resources()[static_cast<std::size_t>(hop.resource)].kind);
  return result;
}

using K = topology::ResourceKind;

TEST(Routes, SwitchedDomainIsBoundByItsPorts) {
  const topology::Cluster cluster = described("gpu:8(h100) nvswitch");
  // Every device sends 7/8 of its 8 GB through its own port: M/P x (P-1) / bandwidth.
  EXPECT_DOUBLE_EQ(exchange_s(cluster, first(8), 1e9), 7e9 / 450e9);
  const topology::LinkTable table(cluster);
  EXPECT_EQ(kinds(table, 0, 7), (std::vector<K>{K::nvlink_out, K::nvlink_in}));
  EXPECT_TRUE(topology::route(table, 3, 3).empty());
  EXPECT_EQ(table.path(3, 3), topology::PathKind::self);
  // All to one: the receiver's port.
  const std::vector<topology::TransferLoad> gather = {{1, 0, 1e9}, {2, 0, 1e9}, {3, 0, 1e9}};
  EXPECT_DOUBLE_EQ(table.busiest_s(topology::loads(table, gather)), 3e9 / 450e9);
}

TEST(Routes, DevicesShareTheirNic) {
  // Two devices per 12.5 GB/s NIC: both cross at once at half its rate.
  const topology::Cluster cluster = described("node:2 gpu:8(a100) nvswitch nic:4(100G)");
  const topology::LinkTable table(cluster);
  const std::vector<topology::TransferLoad> one = {{0, 8, 1e9}}, two = {{0, 8, 1e9}, {1, 9, 1e9}},
                                            apart = {{0, 8, 1e9}, {2, 10, 1e9}};
  EXPECT_DOUBLE_EQ(table.busiest_s(topology::loads(table, one)), 1e9 / 12.5e9);
  EXPECT_DOUBLE_EQ(table.busiest_s(topology::loads(table, two)), 2e9 / 12.5e9);
  EXPECT_DOUBLE_EQ(table.busiest_s(topology::loads(table, apart)), 1e9 / 12.5e9);
  EXPECT_EQ(table.path(0, 8), topology::PathKind::network);
}

TEST(Routes, BytesSplitOverTheNicsOfADevice) {
  const topology::LinkTable table(described("node:2 gpu:8(h100) nvswitch nic:32(100G)"));
  const std::vector<topology::TransferLoad> one = {{0, 8, 1e9}};
  EXPECT_DOUBLE_EQ(table.busiest_s(topology::loads(table, one)), 1e9 / 50e9);
}

TEST(Routes, PcieSlotsAndNumaLink) {
  const topology::Cluster cluster = described("gpu:8(l40s) numa:2 pcie");
  const topology::LinkTable table(cluster);
  EXPECT_EQ(kinds(table, 0, 1), (std::vector<K>{K::slot_up, K::slot_down}));
  EXPECT_EQ(kinds(table, 0, 4), (std::vector<K>{K::slot_up, K::numa, K::slot_down}));
  EXPECT_EQ(table.path(0, 1), topology::PathKind::pcie);
  EXPECT_EQ(table.path(0, 4), topology::PathKind::numa);
  // Four at once over the one link between the sockets (90 GB/s), each direction by itself.
  const std::vector<topology::TransferLoad> four = {
      {0, 4, 1e9}, {1, 5, 1e9}, {2, 6, 1e9}, {3, 7, 1e9}, {4, 0, 1e9}};
  EXPECT_DOUBLE_EQ(table.busiest_s(topology::loads(table, four)), 4e9 / 90e9);
}

TEST(Routes, SysPathsTellNumaNodesApartWhereTheTextNamesNone) {
  topology::Cluster cluster = described("gpu:4(l40s) numa:2 pcie");
  for (topology::Device& device : cluster.devices) device.numa.reset();
  const topology::LinkTable table(cluster);
  EXPECT_EQ(table.path(0, 1), topology::PathKind::pcie);
  EXPECT_EQ(table.path(1, 2), topology::PathKind::numa);
}

TEST(Routes, BridgedPairsFallBackToPcie) {
  const topology::LinkTable table(described("gpu:4(a100-pcie) pairs"));
  EXPECT_EQ(kinds(table, 0, 1), (std::vector<K>{K::nvlink_pair}));
  EXPECT_EQ(kinds(table, 1, 2), (std::vector<K>{K::slot_up, K::slot_down}));
}

TEST(Routes, TwoIslandsInOneHost) {
  const topology::LinkTable table(described("gpu:8(h200-nvl) numa:2 nvlink:4"));
  EXPECT_EQ(table.path(0, 3), topology::PathKind::nvlink);
  EXPECT_EQ(table.path(0, 4), topology::PathKind::numa);
  const std::vector<topology::TransferLoad> direct = {{0, 1, 1e9}, {0, 2, 1e9}, {0, 3, 1e9}};
  EXPECT_DOUBLE_EQ(table.busiest_s(topology::loads(table, direct)),
                   1e9 / 150e9);  // a link for each neighbour
}

TEST(Routes, CubeMesh) {
  const topology::Cluster cluster = described("gpu:8(v100) cubemesh numa:2");
  const topology::LinkTable table(cluster);
  const auto seconds = [&](int a, int b) {
    const std::vector<topology::TransferLoad> one = {{a, b, 1e9}};
    return table.busiest_s(topology::loads(table, one));
  };
  EXPECT_DOUBLE_EQ(seconds(0, 1), 1e9 / 25e9);
  EXPECT_DOUBLE_EQ(seconds(0, 2), 1e9 / 50e9);
  EXPECT_DOUBLE_EQ(seconds(7, 0), 1e9 / 50e9);
  EXPECT_EQ(table.path(0, 4), topology::PathKind::numa);  // no direct link: over PCIe and the sockets
  std::vector<int> lanes(8, 0);
  for (const topology::Link& link : cluster.links) {
    lanes[static_cast<std::size_t>(link.a)] += link.lanes;
    lanes[static_cast<std::size_t>(link.b)] += link.lanes;
  }
  EXPECT_EQ(lanes, std::vector<int>(8, 6));
}

TEST(Routes, RackScaleDomainSpansHosts) {
  const topology::Cluster racks = topology::replicate(*topology::find_cluster_preset("gb200-nvl72"), 2);
  const topology::LinkTable table(racks);
  EXPECT_EQ(table.path(0, 71), topology::PathKind::nvlink);  // first and last tray of one rack
  EXPECT_EQ(table.path(0, 72), topology::PathKind::network);
  const std::vector<topology::TransferLoad> inside = {{0, 71, 1e9}}, across = {{0, 72, 1e9}};
  EXPECT_DOUBLE_EQ(table.busiest_s(topology::loads(table, inside)), 1e9 / 900e9);
  EXPECT_DOUBLE_EQ(table.busiest_s(topology::loads(table, across)), 1e9 / 100e9);
}

TEST(Routes, RailCrossingGoesOverTheNeighbourOnThatRail) {
  const topology::LinkTable table(described("node:2 gpu:8(h100) nvswitch nic:8(400G) fabric:rail"));
  EXPECT_EQ(kinds(table, 0, 8), (std::vector<K>{K::slot_up, K::nic_out, K::nic_in, K::slot_down}));
  EXPECT_EQ(kinds(table, 0, 9),
            (std::vector<K>{K::nvlink_out, K::nvlink_in, K::slot_up, K::nic_out, K::nic_in, K::slot_down}));
  // Without NVLink the spine carries it, and its bandwidth must be known.
  const topology::LinkTable spine(described("node:2 gpu:8(l40s) pcie nic:8(400G) fabric:rail"));
  EXPECT_EQ(kinds(spine, 0, 9),
            (std::vector<K>{K::slot_up, K::nic_out, K::leaf_up, K::leaf_down, K::nic_in, K::slot_down}));
  const std::vector<topology::TransferLoad> one = {{0, 9, 1e9}};
  EXPECT_THROW((void)spine.busiest_s(topology::loads(spine, one)), MissingValue);
}

TEST(Routes, OversubscribedLeaves) {
  const topology::Cluster cluster = described("node:4 gpu:8(h100) nvswitch nic:8(400G) fabric:fat_tree(4,2)");
  const topology::LinkTable table(cluster);
  std::vector<topology::TransferLoad> near, far;
  for (int d = 0; d < 16; ++d) {
    if (d < 8) near.push_back({d, d + 8, 1e9});  // same leaf
    far.push_back({d, d + 16, 1e9});             // the other leaf
  }
  EXPECT_DOUBLE_EQ(table.busiest_s(topology::loads(table, near)), 1e9 / 50e9);
  EXPECT_DOUBLE_EQ(table.busiest_s(topology::loads(table, far)), 16e9 / (16 * 50e9 / 4));
}

TEST(Routes, HostsWithoutNicsFailByName) {
  const topology::LinkTable table(described("node:2 gpu:8(h100) nvswitch"));
  try {
    (void)topology::route(table, 0, 8);
    FAIL();
  } catch (const MissingValue& error) {
    EXPECT_NE(std::string(error.what()).find("--nic"), std::string::npos);
  }
}

TEST(Routes, SharesOfARouteAddUp) {
  for (const char* text :
       {"node:3 gpu:8(h100) nvswitch nic:32(100G) fabric:rail", "node:2 gpu:4(l40s) numa:2 nic:3(100G)",
        "node:2 gpu:6(a100) nvlink:3 nic:2(200G) fabric:fat_tree(2)"}) {
    const topology::LinkTable table(described(text));
    for (int a = 0; a < table.devices(); ++a)
      for (int b = 0; b < table.devices(); ++b) {
        double out = 0, in = 0;
        for (const topology::RouteHop& hop : topology::route(table, a, b)) {
          const K kind = table.resources()[static_cast<std::size_t>(hop.resource)].kind;
          if (kind == K::nic_out) out += hop.share;
          if (kind == K::nic_in) in += hop.share;
        }
        const double wanted = table.path(a, b) == topology::PathKind::network ? 1 : 0;
        EXPECT_NEAR(out, wanted, 1e-12) << text << " " << a << " " << b;
        EXPECT_NEAR(in, wanted, 1e-12) << text << " " << a << " " << b;
      }
  }
}

TEST(Routes, TimeFallsWithBandwidthAndGrowsWithBytes) {
  const std::vector<int> all = first(16);
  const double base = exchange_s(described("node:2 gpu:8(h100) nvswitch nic:8(200G) fabric:rail"), all, 1e6);
  EXPECT_LT(exchange_s(described("node:2 gpu:8(h100) nvswitch nic:8(400G) fabric:rail"), all, 1e6), base);
  EXPECT_GT(exchange_s(described("node:2 gpu:8(h100) nvswitch nic:8(200G) fabric:rail"), all, 2e6), base);
}

TEST(Routes, LatenciesAreGuessesUnlessTheClusterSays) {
  topology::Cluster cluster = described("node:2 gpu:2(h100) nvswitch nic:2(400G)");
  EXPECT_EQ(topology::LinkTable(cluster).latency(topology::PathKind::network).provenance,
            topology::Provenance::guess);
  cluster.fabric.latency_s = {5e-6, topology::Provenance::measured, "here"};
  EXPECT_DOUBLE_EQ(*topology::LinkTable(cluster).latency(topology::PathKind::network).value, 5e-6);
}

}  // namespace
}  // namespace usp
