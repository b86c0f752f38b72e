// SPDX-License-Identifier: Apache-2.0
#include "../../planner/src/search/device_order.hpp"

#include "usp/planner/cluster_calibration.hpp"
#include "usp/planner/detail/axes.hpp"
#include "usp/planner/plan_attention.hpp"
#include "usp/topology/compose.hpp"

#include <gtest/gtest.h>

#include <set>

namespace usp {
namespace {

/// Eight cards on two sockets with a bridge between each of these pairs.
topology::Cluster bridged(const std::vector<std::pair<int, int>>& pairs) {
  std::string text = "     ";
  for (int i = 0; i < 8; ++i) text += " GPU" + std::to_string(i);
  text += "\n";
  for (int a = 0; a < 8; ++a) {
    text += "GPU" + std::to_string(a);
    for (int b = 0; b < 8; ++b) {
      const bool bridge = std::any_of(pairs.begin(), pairs.end(), [&](const auto& p) {
        return (p.first == a && p.second == b) || (p.first == b && p.second == a);
      });
      text += a == b ? " X" : bridge ? " NV4" : a / 4 == b / 4 ? " NODE" : " SYS";
    }
    text += "\n";
  }
  topology::ClusterRequest request;
  request.source = "bridges.txt";
  request.text = text;
  request.device = "rtx-3090";
  request.pcie_gb_s = 12;
  request.numa_gb_s = 10;
  return topology::compose(request);
}

TEST(DeviceOrder, NeighboursAreJoinedByTheNearestLinks) {
  const std::vector<int> order = order_by_links(bridged({{0, 5}, {1, 2}, {3, 4}, {6, 7}}));
  ASSERT_EQ(order.size(), 8U);
  std::set<std::set<int>> pairs;
  for (std::size_t i = 0; i < 8; i += 2) pairs.insert({order[i], order[i + 1]});
  EXPECT_EQ(pairs, (std::set<std::set<int>>{{0, 5}, {1, 2}, {3, 4}, {6, 7}}));
}

TEST(DeviceOrder, TheNaturalOrderStaysWhereItIsSoAlready) {
  EXPECT_TRUE(order_by_links(bridged({{0, 1}, {2, 3}, {4, 5}, {6, 7}})).empty());
  EXPECT_TRUE(order_by_links(bridged({})).empty());
  topology::ClusterRequest request;
  request.source = "dgx-h100";
  EXPECT_TRUE(order_by_links(topology::compose(request)).empty());
}

TEST(DeviceOrder, UlyssesPairsLieOnTheBridges) {
  const std::vector<std::pair<int, int>> bridges = {{0, 5}, {1, 2}, {3, 4}, {6, 7}};
  const topology::Cluster cluster = bridged(bridges);
  const Calibration calibration = calibration_of(cluster, "l40s");
  AttentionRequest request;
  request.shape = {1, 65536, 65536, 32, 32, 128, 128, DType::bf16};
  request.documents = Documents::single(65536, 65536);
  request.band = {0, unbounded};
  request.cluster = &cluster;
  request.calibration = &calibration;
  request.fixed.ring = 4;
  request.fixed.ulysses = 2;
  request.fixed.order = AxisOrder::ulysses_inner;
  const AttentionResult result = plan_attention(request);
  const Placement& placement = result.best().placement;
  ASSERT_EQ(placement.devices.size(), 8U);
  for (const AxisView& axis :
       axes_of(cluster, result.best().plan.mesh, placement, 1, Transport::copy_engine)) {
    if (axis.name != "ulysses") continue;
    EXPECT_TRUE(axis.one_domain) << "each pair shares a bridge";
  }
  ASSERT_FALSE(result.notes.empty());
  EXPECT_NE(result.notes.back().find("CUDA_VISIBLE_DEVICES="), std::string::npos);
}

}  // namespace
}  // namespace usp
