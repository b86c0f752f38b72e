// SPDX-License-Identifier: Apache-2.0
#include "device_order.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace usp {
namespace {

using topology::Link;
using topology::LinkKind;

/// Levels of nearness, the nearest first.
constexpr int levels = 8;

int level_of(const Link& link, int widest) {
  switch (link.kind) {
    case LinkKind::nvlink:
      return link.lanes == widest ? 0 : 1;
    case LinkKind::xgmi:
    case LinkKind::c2c:
      return 2;
    case LinkKind::pix:
      return 3;
    case LinkKind::pxb:
      return 4;
    case LinkKind::phb:
      return 5;
    case LinkKind::node:
      return 6;
    default:
      return levels - 1;
  }
}

/// Devices joined directly or through others, by their least member.
class Groups {
 public:
  explicit Groups(std::size_t count) : least_(count) { std::iota(least_.begin(), least_.end(), 0); }
  void join(int a, int b) {
    const int x = of(a), y = of(b);
    least_[static_cast<std::size_t>(std::max(x, y))] = std::min(x, y);
  }
  [[nodiscard]] int of(int device) const {
    int at = device;
    while (least_[static_cast<std::size_t>(at)] != at) at = least_[static_cast<std::size_t>(at)];
    return at;
  }

 private:
  std::vector<int> least_;
};

}  // namespace

std::vector<int> order_by_links(const topology::Cluster& cluster) {
  const std::size_t count = cluster.devices.size();
  if (cluster.links.empty()) return {};
  for (std::size_t i = 1; i < count; ++i)
    if (cluster.devices[i].node < cluster.devices[i - 1].node) return {};
  int widest = 0;
  for (const Link& link : cluster.links) widest = std::max(widest, link.lanes);
  // The place of a device: its group on every level, from the host down.
  std::vector<std::vector<int>> places(count);
  for (std::size_t i = 0; i < count; ++i) places[i].push_back(cluster.devices[i].node);
  Groups groups(count);
  std::vector<std::vector<int>> by_level;
  for (int level = 0; level < levels; ++level) {
    for (const Link& link : cluster.links) {
      const auto node = [&](int device) { return cluster.devices[static_cast<std::size_t>(device)].node; };
      if (level_of(link, widest) == level && node(link.a) == node(link.b)) groups.join(link.a, link.b);
    }
    std::vector<int>& of = by_level.emplace_back();
    for (std::size_t i = 0; i < count; ++i) of.push_back(groups.of(static_cast<int>(i)));
  }
  std::reverse(by_level.begin(), by_level.end());
  for (const std::vector<int>& level : by_level)
    for (std::size_t i = 0; i < count; ++i) places[i].push_back(level[i]);
  std::vector<int> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return places[static_cast<std::size_t>(a)] < places[static_cast<std::size_t>(b)];
  });
  return std::is_sorted(order.begin(), order.end()) ? std::vector<int>{} : order;
}

void note_device_order(const std::vector<int>& order, const topology::Cluster& cluster,
                       std::vector<std::string>& notes) {
  if (order.empty()) return;
  std::vector<int> local;
  for (const int device : order) {
    const topology::Device& d = cluster.devices[static_cast<std::size_t>(device)];
    if (d.node == cluster.devices[static_cast<std::size_t>(order.front())].node) local.push_back(d.local);
  }
  notes.push_back(
      fmt::format("ranks lie on the devices of {} in the order of their links: "
                  "CUDA_VISIBLE_DEVICES={} for frameworks; usp run follows the plan file",
                  cluster.nodes.size() > 1 ? "each host" : "the host", fmt::join(local, ",")));
}

}  // namespace usp
