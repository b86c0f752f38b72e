// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/network_rates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace usp {
namespace {

/// Of one kind of transfer: the median share of its curves, and the range of all.
std::optional<Efficiency> share_of(const MeasuredNetwork& measured, NetworkOperation operation) {
  std::vector<double> shares;
  Efficiency found;
  for (const NetworkCurve& curve : measured.curves) {
    if (curve.key.operation != operation) continue;
    found.low = shares.empty() ? curve.min_share : std::min(found.low, curve.min_share);
    found.high = std::max(found.high, curve.max_share);
    shares.push_back(curve.share);
  }
  if (shares.empty()) return std::nullopt;
  std::sort(shares.begin(), shares.end());
  found.value = shares[shares.size() / 2];
  found.source = measured.source;
  found.measured = true;
  return found;
}

constexpr double untold_share = 0.25;  ///< at least, of a line that only short messages went over

/// False where the latency was most of every time: a share of what is left of it says nothing.
bool set_own_shares(NetworkCurve& curve, const MeasuredNetwork& network, double spread) {
  const double per_byte = curve.key.messages_per_host() / curve.key.messages() / (network.gb_s * 1e9);
  double low = 0, high = 0;
  for (std::size_t i = curve.points.size() / 2; i < curve.points.size(); ++i) {
    const NetworkPoint& point = curve.points[i];
    if (point.time_s < 2 * network.latency_s) continue;
    const double share = point.bytes * per_byte / (point.time_s - network.latency_s);
    low = low == 0 ? share : std::min(low, share);
    high = std::max(high, share);
    curve.share = share;
  }
  if (low == 0) return false;
  curve.min_share = low / (1 + spread);
  curve.max_share = high * (1 + spread);
  return true;
}

/// Another network of the same kind: its shares lie as far apart again.
void widen(Efficiency& share) {
  if (!share.measured) return;
  share.low = std::min(share.low / 2, share.value / 2);
  share.high = std::max(share.high, share.value * 1.25);
  share.measured = false;
}

}  // namespace

void set_shares(MeasuredNetwork& network, double spread) {
  std::vector<NetworkCurve*> unknown;
  std::vector<double> known;
  double low = 0, high = 0;
  for (NetworkCurve& curve : network.curves) {
    if (!set_own_shares(curve, network, spread)) {
      unknown.push_back(&curve);
      continue;
    }
    low = known.empty() ? curve.min_share : std::min(low, curve.min_share);
    high = std::max(high, curve.max_share);
    known.push_back(curve.share);
  }
  std::sort(known.begin(), known.end());
  for (NetworkCurve* curve : unknown) {
    curve->share = known.empty() ? 1 : known[known.size() / 2];
    curve->min_share = known.empty() ? untold_share : low;
    curve->max_share = known.empty() ? 1 : high;
  }
}

LineShare NetworkRates::share(NetworkOperation operation, int hosts, double bytes) const {
  const auto of = [](const Efficiency& e) { return LineShare{e.value, e.band(), e.measured}; };
  switch (operation) {
    case NetworkOperation::hop:
      return of(hop);
    case NetworkOperation::alltoall:
      return of(exchange);
    case NetworkOperation::all_gather:
      if (gather) return of(*gather);
      break;
    case NetworkOperation::reduce_scatter:
      if (reduce_scatter) return of(*reduce_scatter);
      break;
  }
  LineShare ring = of(inter_node_ring_efficiency(hosts, bytes));
  ring.value *= ring_factor;
  return ring;
}

const NetworkRates::Curve* NetworkRates::curve(const NetworkKey& key) const {
  const auto found =
      std::find_if(curves.begin(), curves.end(), [&](const Curve& curve) { return curve.key == key; });
  return found == curves.end() ? nullptr : &*found;
}

NetworkRates network_rates(const MeasuredNetwork& measured, double repeat) {
  NetworkRates rates;
  if (const auto hop = share_of(measured, NetworkOperation::hop)) rates.hop = *hop;
  if (const auto exchange = share_of(measured, NetworkOperation::alltoall)) rates.exchange = *exchange;
  rates.gather = share_of(measured, NetworkOperation::all_gather);
  rates.reduce_scatter = share_of(measured, NetworkOperation::reduce_scatter);
  rates.latency_s = measured.latency_s;
  rates.line_gb_s = measured.gb_s;
  if (measured.interference)
    rates.beside = {*measured.interference, measured.min_interference.value_or(*measured.interference),
                    measured.max_interference.value_or(*measured.interference), measured.source};
  for (const NetworkCurve& curve : measured.curves) {
    std::vector<std::pair<double, double>> points;
    for (const NetworkPoint& point : curve.points) points.emplace_back(point.bytes, point.time_s);
    NetworkRates::Curve& added = rates.curves.emplace_back();
    added.key = curve.key;
    added.table = TimeTable::through(points);
    added.least_bytes = points.front().first;
    added.most_bytes = points.back().first;
    added.band = repeat;
    for (const auto& [bytes, seconds] : points)
      added.band = std::max(added.band, repeat + std::abs(added.table.at(bytes) / seconds - 1));
  }
  return rates;
}

NetworkRates on_another_network(NetworkRates rates) {
  widen(rates.hop);
  widen(rates.exchange);
  if (rates.gather) widen(*rates.gather);
  if (rates.reduce_scatter) widen(*rates.reduce_scatter);
  rates.latency_s.reset();
  rates.curves.clear();
  return rates;
}

}  // namespace usp
