// SPDX-License-Identifier: Apache-2.0
#include "../../topology/src/peer_access.hpp"

#include "reader_checks.hpp"

#include "usp/topology/compose.hpp"

#include <gtest/gtest.h>

namespace usp {
namespace {

using namespace test;

const std::string two_pairs =
    " \tGPU0\tGPU1\tGPU2\tGPU3\n"
    " GPU0\tX\tOK\tCNS\tCNS\n GPU1\tOK\tX\tCNS\tCNS\n"
    " GPU2\tCNS\tCNS\tX\tOK\n GPU3\tCNS\tCNS\tOK\tX\n"
    "\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n";

topology::Cluster described(const std::string& source, const std::string& access = "") {
  topology::ClusterRequest request;
  request.source = source;
  request.p2p = access;
  return topology::compose(request);
}

topology::Cluster with(const std::string& source, const std::string& matrix) {
  topology::Cluster cluster = described(source);
  topology::apply_peer_access(cluster, topology::read_peer_access(matrix, "m"), "m", false);
  return cluster;
}

TEST(PeerAccess, AMatrixIsReadByItsLabels) {
  const topology::PeerAccess access = topology::read_peer_access(two_pairs, "m");
  EXPECT_EQ(access.devices, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(access.open[2], (std::vector<bool>{false, false, true, true}));
  EXPECT_TRUE(access.notes.empty());
}

TEST(PeerAccess, AHostIsWhatAllItsPairsOverPcieAre) {
  const std::string all = " GPU0 GPU1\nGPU0 X OK\nGPU1 OK X\n",
                    one_way = " GPU0 GPU1\nGPU0 X OK\nGPU1 NS X\n";
  EXPECT_EQ(with("pcie gpu:2(l40s)", all).specs.at(0).pcie_p2p, true);
  EXPECT_EQ(with("pcie gpu:2(l40s)", one_way).specs.at(0).pcie_p2p, false);
  const topology::Cluster some = with("pcie gpu:4(l40s)", two_pairs);
  EXPECT_EQ(some.specs.at(0).pcie_p2p, false);
  EXPECT_TRUE(notes_have(some.notes, "2 of 6 pairs over PCIe copy peer to peer"));
  const topology::Cluster switched = with("nvswitch gpu:2(h100)", one_way);
  EXPECT_EQ(switched.specs.at(0).pcie_p2p, std::nullopt);
  EXPECT_TRUE(notes_have(switched.notes, "NVLink or xGMI joins all pairs"));
  expect_refused([] { (void)with("pcie gpu:8(l40s)", two_pairs); }, 0, "GPU4", "no row");
}

// A matrix of more devices is another host's, unless some devices of the host are selected.
TEST(PeerAccess, ALargerMatrixIsOfAnotherHost) {
  expect_refused([] { (void)with("pcie gpu:2(l40s)", two_pairs); }, 0, "GPU2", "no host has it");
  topology::Cluster some = described("pcie gpu:2(l40s)");
  topology::apply_peer_access(some, topology::read_peer_access(two_pairs, "m"), "m", true);
  EXPECT_EQ(some.specs.at(0).pcie_p2p, true);
}

TEST(PeerAccess, WhereNothingCopiesOverPcieANoteSaysSo) {
  const topology::Cluster switched = described("nvswitch gpu:4(h100)", "yes");
  EXPECT_EQ(switched.specs.at(0).pcie_p2p, std::nullopt);
  EXPECT_TRUE(notes_have(switched.notes, "--p2p yes changes nothing: NVLink or xGMI joins all pairs"));
  EXPECT_TRUE(notes_have(described("pcie gpu:1(l40s)", "no").notes, "no host has two devices"));
  EXPECT_FALSE(notes_have(described("pcie gpu:4(l40s)", "no").notes, "changes nothing"));
}

TEST(PeerAccess, OrOneSaysSo) {
  EXPECT_EQ(described("pcie gpu:4(l40s)", "yes").specs.at(0).pcie_p2p, true);
  EXPECT_EQ(described("pcie gpu:4(l40s)", "no").specs.at(0).pcie_p2p, false);
  EXPECT_THROW((void)described("pcie gpu:4(l40s)", "maybe"), Error);
}

TEST(PeerAccess, WhatIsNoMatrixIsRefusedByLineAndToken) {
  const auto refused = [](const std::string& text, long line, const std::string& token, const char* words) {
    expect_refused([&] { (void)topology::read_peer_access(text, "m"); }, line, token, words);
  };
  refused("", 0, "", "not the output of");
  refused("GPU0 GPU0\n", 1, "GPU0", "two columns");
  refused("GPU0 GPU1\nGPU0 X OK\n", 0, "GPU1", "no row");
  refused("GPU0 GPU1\nGPU0 X\nGPU1 OK X\n", 2, "GPU0", "the row has 1 cell, the header 2");
  refused("GPU0 GPU1\nGPU0 X NV4\nGPU1 OK X\n", 2, "NV4", "no state");
  refused("GPU0 GPU1\nGPU0 OK X\nGPU1 OK X\n", 2, "OK", "diagonal");
  refused("GPU0 GPU1\nGPU0 X OK\nGPU0 X OK\n", 3, "GPU0", "a second row");
  refused("GPU0 GPU1\nGPU0 X OK\nGPU5 X OK\n", 3, "GPU5", "no column");
  refused(two_pairs + two_pairs, 12, "GPU0", "a second matrix");
}

}  // namespace
}  // namespace usp
