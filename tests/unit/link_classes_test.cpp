// SPDX-License-Identifier: Apache-2.0
// Links of machines without measurements: borrowed by class, scaled by line rate, in bands as wide as the
// class.
#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/links.hpp"
#include "usp/topology/compose.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace usp {
namespace {

topology::Cluster compose(const std::string& source, std::optional<int> nodes = {}) {
  topology::ClusterRequest request;
  request.source = source;
  request.nodes = nodes;
  return topology::compose(request);
}

/// Every measured collective of one PCIe host against the other's curves, borrowed.
TEST(LinkClasses, OnePcieHostIsForeseenFromTheOtherWithinItsBand) {
  int rows = 0, covered = 0;
  double widest = 0;
  for (const auto& [host, lender, slots] :
       {std::tuple("l40s", "rtx_pro_6000", 32.0 / 64), std::tuple("rtx_pro_6000", "l40s", 64.0 / 32)}) {
    const Calibration truth = load_calibration(host), from = load_calibration(lender);
    const TransferModel foreseen = from.comm.borrowed(slots, 3).on_unknown_host({});
    for (const Collective op : {Collective::alltoall, Collective::all_gather, Collective::reduce_scatter})
      for (const int ranks : {2, 4, 8})
        for (double bytes = 1 << 20; bytes <= 512 << 20; bytes *= 2) {
          const Estimate e = foreseen.time(op, ranks, bytes);
          const double ratio = truth.comm.time(op, ranks, bytes).seconds / e.seconds;
          const double off = std::max(ratio, 1 / ratio);
          ++rows;
          covered += off <= 1 + e.band ? 1 : 0;
          widest = std::max(widest, off);
          EXPECT_LE(e.band, 3 + 1e-9);
          EXPECT_NE(e.extrapolation & bits(Extrapolation::link_class), 0U);
        }
  }
  RecordProperty("covered", std::to_string(covered) + "/" + std::to_string(rows));
  RecordProperty("widest", std::to_string(widest));
  EXPECT_EQ(rows, 180);
  EXPECT_EQ(covered, rows) << widest;
  EXPECT_LE(widest, 4);
}

TEST(LinkClasses, KernelsComeByCardAndLinksByClass) {
  // A PCIe card whose kernels were measured on an NVSwitch board, and a switch with fewer lanes.
  const Calibration pcie = calibration_of(compose("a100-pcie"));
  EXPECT_EQ(pcie.name, "a100_sxm");
  ASSERT_TRUE(pcie.pcie.has_value());
  const Estimate exchange = pcie.over_pcie().time(Collective::alltoall, 8, 64 << 20);
  EXPECT_GE(exchange.band, 3);
  EXPECT_GT(exchange.seconds,
            5 * load_calibration("a100_sxm").comm.time(Collective::alltoall, 8, 64 << 20).seconds);
  const Calibration lanes = calibration_of(compose("h800")), own = calibration_of(compose("dgx-h100"));
  const double slower = lanes.comm.time(Collective::alltoall, 8, 512 << 20).seconds /
                        own.comm.time(Collective::alltoall, 8, 512 << 20).seconds;
  EXPECT_NEAR(slower, 450.0 / 200, 0.1);
  EXPECT_TRUE(lanes.comm.borrows());
  EXPECT_FALSE(own.comm.borrows());
  // A host of PCIe cards keeps its class's band even under its own card's curves.
  EXPECT_GE(calibration_of(compose("l40s")).over_pcie().time(Collective::alltoall, 8, 64 << 20).band, 3);
}

TEST(LinkClasses, ACardOnTheSameSlotsIsOnAnotherHost) {
  // Slots as fast as the measured host's are no proof that copies go as they went there.
  topology::ClusterRequest request;
  request.source = "pcie gpu:4(rtx-4090)";
  const auto exchange_s = [&](const char* p2p) {
    request.p2p = p2p;
    return calibration_of(topology::compose(request))
        .over_pcie()
        .time(Collective::alltoall, 4, 64 << 20)
        .seconds;
  };
  const double measured = load_calibration("l40s").comm.time(Collective::alltoall, 4, 64 << 20).seconds;
  EXPECT_NEAR(exchange_s("no") / exchange_s("yes"), 2, 0.01);
  EXPECT_EQ(exchange_s(""), exchange_s("no"));  // its driver disables it
  EXPECT_NE(exchange_s("yes"), measured);
  // The host of the measured card is the measured host, whatever one knows of peers.
  request.source = "pcie gpu:4(l40s)";
  EXPECT_NEAR(exchange_s("yes") / measured, 1, 1e-9);
}

TEST(LinkClasses, GroupsAndHopsAtOnceLieBetweenAloneAndAllShared) {
  const TransferModel host = load_calibration("l40s").comm;
  const double bytes = 64 << 20;
  const double alone = host.time(Collective::alltoall, 4, bytes).seconds;
  const Estimate two = host.time(Collective::alltoall, 4, bytes, 2);
  EXPECT_GT(two.seconds, 1.1 * alone);
  EXPECT_LT(two.seconds, 3 * alone);
  const double hop = host.hop(Transport::nccl, bytes).seconds, all = host.contended_hop(8, bytes).seconds;
  const Estimate crowd = host.hop(Transport::nccl, bytes, 8);
  EXPECT_NEAR(crowd.seconds, std::sqrt(hop * all), 1e-9);
  EXPECT_GE(crowd.seconds * (1 + crowd.band), all);
  EXPECT_LE(crowd.seconds / (1 + crowd.band), hop);
  // A measured curve of the crowd wins.
  const TransferModel measured =
      host.with({{Collective::alltoall, 4, 1 << 20, 1e-3, 2}, {Collective::alltoall, 4, bytes, 64e-3, 2}},
                {{Transport::nccl, 1 << 20, 1e-3, 8}, {Transport::nccl, bytes, 32e-3, 8}}, "own");
  EXPECT_NEAR(measured.time(Collective::alltoall, 4, bytes, 2).seconds, 64e-3, 1e-6);
  EXPECT_NEAR(measured.hop(Transport::nccl, bytes, 8).seconds, 32e-3, 1e-6);
}

TEST(LinkClasses, AGatherOverHostsCarriesEachByteOnceToAHost) {
  const topology::Cluster cluster = compose("dgx-h100", 4);
  const Calibration calibration = calibration_of(cluster);
  LinkPricer links(cluster, calibration);
  const Mesh ring{1, 32, 1};
  const TransferPattern& gather =
      links.pattern(links.patterns(ring, Placement{}), schedule::Peers::every_ring, {});
  const double bytes = 64 << 20;
  const TransferTime time =
      links.time(gather, schedule::Peers::every_ring, WriteMode::overwrite, bytes, Transport::nccl);
  // 8 blocks of each of 3 other hosts come in over 8 NICs of 50 GB/s: 3 blocks a NIC.
  const double share = inter_node_ring_efficiency(4, bytes * 32).value;
  EXPECT_NEAR(time.inter_node_s, 3 * bytes / (50e9 * share), 0.02 * time.inter_node_s);
}

/// All hosts meet on the uplinks of a rail, also where one host is followed in place of all; a leaf of one
/// host has no others on its uplinks.
TEST(LinkClasses, HostsThatAreAlikeLoadUplinksAsHostsThatAreNot) {
  for (const char* fabric : {"rail", "fat_tree", "fat_tree(16,1)"}) {
    SCOPED_TRACE(fabric);
    topology::ClusterRequest request;
    request.source = "node:4 gpu:8(l40s) nic:8(400G)";
    request.fabric = fabric;
    request.oversubscription = 16;
    topology::Cluster cluster = topology::compose(request);
    const Calibration calibration = calibration_of(cluster);
    for (const schedule::Peers peers : {schedule::Peers::every_ulysses, schedule::Peers::shift}) {
      const Mesh mesh = peers == schedule::Peers::shift ? Mesh{1, 32, 1} : Mesh{1, 1, 32};
      const auto busiest = [&] {
        LinkPricer links(cluster, calibration);
        return std::pair{links.sources_followed(mesh, {}),
                         links.pattern(links.patterns(mesh, {}), peers, {0, 1}).inter_node_s_per_byte};
      };
      const auto [followed, alike] = busiest();
      EXPECT_EQ(followed, 8) << "one host stands for all";
      topology::Cluster other = cluster;
      *cluster.nodes.back().numa_gb_s.value *= 1.001;
      const auto [all, differing] = busiest();
      EXPECT_EQ(all, 32);
      EXPECT_DOUBLE_EQ(alike, differing);
      cluster = other;
    }
  }
}

/// The slowest NIC bounds a move wherever its host stands.
TEST(LinkClasses, AHostWithASlowerNicIsNotRepresentedByTheFirst) {
  topology::Cluster cluster = compose("dgx-h100", 4);
  const Calibration calibration = calibration_of(cluster);
  const Mesh ring{1, 32, 1};
  const double bytes = 64 << 20;
  const auto hop = [&] {
    LinkPricer links(cluster, calibration);
    const TransferPattern& pattern =
        links.pattern(links.patterns(ring, Placement{}), schedule::Peers::shift, {0, 1});
    return links.time(pattern, schedule::Peers::shift, WriteMode::overwrite, bytes, Transport::nccl)
        .inter_node_s;
  };
  const double alike = hop();
  for (topology::Nic& nic : cluster.nics)
    if (nic.node == 2) *nic.gb_s.value /= 10;
  EXPECT_GT(hop(), 8 * alike);
}

}  // namespace
}  // namespace usp
