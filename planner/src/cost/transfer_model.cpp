// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/transfer_model.hpp"

#include "usp/base/error.hpp"
#include "usp/base/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

namespace usp {
namespace {

// Bands of what was not measured, as relative half widths added to the measured ones. A group size outside
// the measured ones: the two trends one could follow (hold, or continue) differ by about this much on the
// L40S.
constexpr double group_above_band = 0.6;
// Two-rank all-to-all against measured send/recv on H100: 0.89 to 1.44 of it at 64 to 512 MiB.
constexpr double two_rank_band = 0.35;
// A larger transfer than any measured one: NCCL's algorithm switches moved bus bandwidth by up to a quarter
// within a factor of two (nccl issue 2169).
constexpr double bytes_above_band = 0.25;
// A reduce-scatter and an all-gather take .7 to 2.5 times an all-reduce of the same bytes (10 machines, 2 to
// 8 ranks; from 1 MiB on 1.3 on average): trees and one launch do better than two rings.
constexpr double all_reduce_band = 1.0;
constexpr double uncalibrated_band = 1.0;

constexpr Collective all_operations[] = {Collective::alltoall, Collective::all_gather,
                                         Collective::reduce_scatter, Collective::all_reduce};

/// Band of a time between ranks alone and all that share; that of a class of hosts holds most of it.
double crowd_band(double band, double shared, double class_band) {
  return class_band > 0 ? std::max(band, shared - 1) : (1 + band) * shared - 1;
}

double bus_bandwidth(Collective operation, int ranks, double bytes, double seconds) {
  return traffic_factor(operation, ranks) * bytes / seconds;
}

}  // namespace

TransferModel::TransferModel(std::vector<CollectiveRow> rows, std::vector<PeerTransferSample> hops,
                             Repeatability repeat, std::string source)
    : rows_(std::move(rows)), hop_rows_(std::move(hops)), repeat_(repeat), source_(std::move(source)) {
  const auto positive = [](double x) { return x > 0 && x < std::numeric_limits<double>::infinity(); };
  for (const CollectiveRow& row : rows_)
    if (row.ranks < 2 || !positive(row.bytes) || !positive(row.seconds))
      throw InvalidInput(
          {source_, 0, std::string(word_of(row.operation))},
          "a measured collective needs two or more ranks, bytes above zero and a time above zero; "
          "leave the row out or correct it");
  for (const PeerTransferSample& row : hop_rows_)
    if (!positive(row.bytes) || !positive(row.seconds))
      throw InvalidInput(
          {source_, 0, std::string(word_of(row.transport))},
          "a measured transfer needs bytes and a time above zero; leave the row out or correct it");
  fit_collectives();
  fit_hops();
}

TransferModel TransferModel::alpha_beta(double alpha_s, double gb_s) {
  std::vector<CollectiveRow> rows;
  std::vector<PeerTransferSample> hops;
  for (int octave = 9; octave <= 36; ++octave) {
    const double bytes = std::ldexp(1.0, octave);
    for (const Collective operation : all_operations)
      for (int ranks = 2; ranks <= max_table_ranks; ++ranks)
        rows.push_back(
            {operation, ranks, bytes, alpha_s + traffic_factor(operation, ranks) * bytes / (gb_s * 1e9)});
    for (const Transport transport : {Transport::copy_engine, Transport::nccl})
      hops.push_back({transport, bytes, alpha_s + bytes / (gb_s * 1e9)});
  }
  TransferModel curves(std::move(rows), std::move(hops), {}, "data sheet");
  curves.always_ = bits(Extrapolation::uncalibrated);
  return curves;
}

TransferModel TransferModel::with(const std::vector<CollectiveRow>& rows,
                                  const std::vector<PeerTransferSample>& hops,
                                  const std::string& source) const {
  std::vector<CollectiveRow> merged = rows;
  const auto copies = [](const CollectiveRow& row) { return row.transport == Transport::copy_engine; };
  for (const CollectiveRow& old : rows_) {
    const bool replaced = std::any_of(rows.begin(), rows.end(), [&](const CollectiveRow& row) {
      return row.operation == old.operation && row.ranks == old.ranks && row.groups == old.groups &&
             copies(row) == copies(old);
    });
    if (!replaced) merged.push_back(old);
  }
  // A hop measured elsewhere would contradict the user's own two-rank curve.
  const bool own_pair = std::any_of(rows.begin(), rows.end(), [](const CollectiveRow& row) {
    return row.operation == Collective::alltoall && row.ranks == 2;
  });
  std::vector<PeerTransferSample> all_hops = hops;
  for (const PeerTransferSample& old : hop_rows_) {
    const bool replaced = std::any_of(hops.begin(), hops.end(), [&](const PeerTransferSample& hop) {
      return hop.transport == old.transport && hop.ranks == old.ranks;
    });
    if (!own_pair && !replaced) all_hops.push_back(old);
  }
  TransferModel curves(std::move(merged), std::move(all_hops), repeat_,
                       source_.empty() ? source : fmt::format("{}, else {}", source, source_));
  curves.always_ = rows.empty() && hops.empty() ? always_ : 0;
  return curves;
}

TransferModel TransferModel::on_faster_links(double ratio) const {
  const auto key = [](const CollectiveRow& row) {
    return std::tuple(row.operation, row.transport, row.ranks, row.groups);
  };
  std::map<std::tuple<Collective, std::optional<Transport>, int, int>, double> shortest;
  for (const CollectiveRow& row : rows_) {
    double& least = shortest.try_emplace(key(row), row.seconds).first->second;
    least = std::min(least, row.seconds);
  }
  std::map<std::pair<Transport, int>, double> shortest_hop;
  for (const PeerTransferSample& row : hop_rows_) {
    double& least = shortest_hop.try_emplace({row.transport, row.ranks}, row.seconds).first->second;
    least = std::min(least, row.seconds);
  }
  std::vector<CollectiveRow> rows = rows_;
  for (CollectiveRow& row : rows) {
    const double least = shortest[key(row)];
    row.seconds = least + (row.seconds - least) / ratio;
  }
  std::vector<PeerTransferSample> hops = hop_rows_;
  for (PeerTransferSample& row : hops) {
    const double least = shortest_hop[{row.transport, row.ranks}];
    row.seconds = least + (row.seconds - least) / ratio;
  }
  TransferModel curves(std::move(rows), std::move(hops), repeat_, source_);
  curves.always_ = always_;
  return curves;
}

TransferModel TransferModel::borrowed(double ratio, double band) const {
  TransferModel curves = std::abs(ratio - 1) > 1e-9 ? on_faster_links(ratio) : *this;
  std::vector<CollectiveRow> rows = curves.rows_;
  for (CollectiveRow& row : rows) row.class_band = std::max(row.class_band, band);
  std::vector<PeerTransferSample> hops = curves.hop_rows_;
  for (PeerTransferSample& hop : hops) hop.class_band = std::max(hop.class_band, band);
  TransferModel result(std::move(rows), std::move(hops), repeat_, source_);
  result.always_ = always_;
  return result;
}

TransferModel TransferModel::on_unknown_host(std::optional<bool> peer_to_peer) const {
  std::vector<CollectiveRow> rows = rows_;
  for (CollectiveRow& row : rows) {
    const auto& measured = curve(row.operation, row.transport).measured;
    const auto pair = measured.find(2);
    if (row.ranks == 2 || pair == measured.end()) continue;
    const double alone = traffic_factor(row.operation, row.ranks) / traffic_factor(row.operation, 2) *
                         pair->second.table.at(row.bytes);
    row.seconds = peer_to_peer.value_or(false) ? alone : alone * row.ranks / 2;
  }
  TransferModel curves(std::move(rows), hop_rows_, repeat_, source_);
  curves.always_ = always_;
  return curves;
}

bool TransferModel::borrows() const {
  const auto from_another_host = [](const auto& row) { return row.class_band > 0; };
  return std::any_of(rows_.begin(), rows_.end(), from_another_host) ||
         std::any_of(hop_rows_.begin(), hop_rows_.end(), from_another_host);
}

TransferModel TransferModel::borrowed_scaled(double factor) const {
  std::vector<CollectiveRow> rows = rows_;
  for (CollectiveRow& row : rows)
    if (row.class_band > 0) row.seconds /= factor;
  std::vector<PeerTransferSample> hops = hop_rows_;
  for (PeerTransferSample& row : hops)
    if (row.class_band > 0) row.seconds /= factor;
  TransferModel curves(std::move(rows), std::move(hops), repeat_, source_);
  curves.always_ = always_;
  return curves;
}

bool TransferModel::only_copy_engines() const {
  return std::all_of(rows_.begin(), rows_.end(),
                     [](const CollectiveRow& row) { return row.transport == Transport::copy_engine; });
}

void TransferModel::fit_collectives() {
  using Key = std::tuple<Curves*, std::size_t, int, int>;
  std::map<Key, std::vector<std::pair<double, double>>> series;
  std::map<Key, double> class_bands;
  const bool no_library = only_copy_engines();
  for (const CollectiveRow& row : rows_) {
    const auto add = [&](Curves& curves) {
      const Key key(&curves, static_cast<std::size_t>(row.operation), row.ranks, row.groups);
      series[key].emplace_back(row.bytes, row.seconds);
      class_bands[key] = std::max(class_bands[key], row.class_band);
    };
    const bool copies = row.transport == Transport::copy_engine;
    if (copies) add(copy_engine_curves_);
    if (!copies || no_library) add(curves_);
  }
  double sum = 0;
  std::size_t count = 0;
  for (auto& [key, points] : series) {
    Measured measured;
    measured.class_band = class_bands[key];
    measured.table = TimeTable::through(points);
    std::vector<double> errors;
    measured.min_bytes = measured.max_bytes = points.front().first;
    for (const auto& [bytes, seconds] : points) {
      measured.min_bytes = std::min(measured.min_bytes, bytes);
      measured.max_bytes = std::max(measured.max_bytes, bytes);
      errors.push_back(std::abs(measured.table.at(bytes) / seconds - 1));
      sum += errors.back();
      worst_error_ = std::max(worst_error_, errors.back());
      ++count;
    }
    std::sort(errors.begin(), errors.end());
    measured.residual = errors[errors.size() * 9 / 10];
    const auto& [curves, operation, ranks, groups] = key;
    Curve& curve = (*curves)[operation];
    if (groups == 1)
      curve.measured.emplace(ranks, measured);
    else
      curve.at_once.emplace(std::pair(ranks, groups), measured);
  }
  mean_error_ = count > 0 ? sum / static_cast<double>(count) : 0;
  for (const Collective operation : all_operations)
    for (Curves* curves : {&curves_, &copy_engine_curves_})
      fill_groups((*curves)[static_cast<std::size_t>(operation)], operation);
}

void TransferModel::fill_groups(Curve& curve, Collective operation) const {
  if (curve.measured.empty()) return;
  curve.groups.resize(max_table_ranks + 1);
  for (int ranks = 2; ranks <= max_table_ranks; ++ranks) {
    Group& group = curve.groups[static_cast<std::size_t>(ranks)];
    const auto exact = curve.measured.find(ranks);
    if (exact != curve.measured.end())
      group = {exact->second.table, exact->second.max_bytes, exact->second.residual, exact->second.class_band,
               0};
    else
      group = between(curve, operation, ranks);
  }
}

TransferModel::Group TransferModel::between(const Curve& curve, Collective operation, int ranks) const {
  const auto above = curve.measured.upper_bound(ranks);
  const bool inside = above != curve.measured.end() && above != curve.measured.begin();
  // Two curves to draw a line through; a single one, or one below the least measured size, is held.
  auto second = inside ? above : above == curve.measured.end() ? std::prev(above) : above;
  auto first = second == curve.measured.begin() ? second : std::prev(second);
  if (!inside && above != curve.measured.end()) first = second;
  Group group;
  group.max_bytes = std::min(first->second.max_bytes, second->second.max_bytes);
  group.extrapolation = bits(Extrapolation::group_size);
  std::array<double, TimeTable::nodes> seconds{};
  double spread = 0;
  for (int i = 0; i < TimeTable::nodes; ++i) {
    const double bytes = TimeTable::node_bytes(i);
    const double low = bus_bandwidth(operation, first->first, bytes, first->second.table.at(bytes));
    const double high = bus_bandwidth(operation, second->first, bytes, second->second.table.at(bytes));
    double rate = high;
    if (first != second) {
      double slope = std::log(high / low) / std::log(static_cast<double>(second->first) / first->first);
      if (!inside) slope = std::min(slope, 0.0);
      rate = high * std::pow(static_cast<double>(ranks) / second->first, slope);
    }
    spread = std::max(spread, std::abs(std::log(high / low)) / 4);
    double& t = seconds[static_cast<std::size_t>(i)];
    t = traffic_factor(operation, ranks) * bytes / rate;
    if (i > 0) t = std::max(t, seconds[static_cast<std::size_t>(i - 1)]);
  }
  group.table = TimeTable(seconds);
  group.class_band = std::max(first->second.class_band, second->second.class_band);
  group.band =
      std::max(first->second.residual, second->second.residual) + (inside ? spread : group_above_band);
  return group;
}

void TransferModel::fit_hops() {
  const Curve& all = curve(Collective::alltoall);
  const auto pair = all.measured.find(2);
  for (const Transport transport : {Transport::copy_engine, Transport::nccl}) {
    Hop& hop = hops_[static_cast<std::size_t>(transport)];
    std::vector<std::pair<double, double>> points;
    std::map<int, std::vector<std::pair<double, double>>> crowds;
    for (const PeerTransferSample& row : hop_rows_) {
      if (row.transport != transport) continue;
      (row.ranks > 2 ? crowds[row.ranks] : points).emplace_back(row.bytes, row.seconds);
      hop.class_band = std::max(hop.class_band, row.class_band);
    }
    for (auto& [ranks, crowd] : crowds) hop.crowds.emplace(ranks, TimeTable::through(std::move(crowd)));
    std::sort(points.begin(), points.end());
    hop.measured = points.size() > 1;
    hop.known = hop.measured || pair != all.measured.end();
    if (!hop.known) continue;
    if (!hop.measured) {
      points.clear();
      hop.class_band = pair->second.class_band;
    }
    hop.min_bytes = hop.measured ? points.front().first : pair->second.min_bytes / 2;
    hop.max_bytes = hop.measured ? points.back().first : pair->second.max_bytes / 2;
    const double limit = hop.measured ? hop.min_bytes / 2 : hop.max_bytes;
    const bool line = transport == Transport::copy_engine || pair == all.measured.end();
    double slope = 0, start = 0;
    if (hop.measured && line) {
      slope = (points[1].second - points[0].second) / (points[1].first - points[0].first);
      start = std::max(0.0, points[0].second - slope * points[0].first);
    }
    for (double bytes = 256; bytes <= limit; bytes *= 2)
      points.emplace_back(bytes,
                          hop.measured && line ? start + slope * bytes : pair->second.table.at(2 * bytes));
    hop.table = TimeTable::through(std::move(points));
  }
}

Estimate TransferModel::time(Collective operation, int ranks, double bytes, int groups,
                             std::optional<Transport> transport) const {
  if (ranks <= 1) return {};
  const Curve& of = curve(operation, transport);
  const auto known = [&](Collective part) { return !curve(part, transport).measured.empty(); };
  if (operation == Collective::all_reduce && of.measured.empty() && known(Collective::reduce_scatter) &&
      known(Collective::all_gather)) {
    Estimate both = time(Collective::reduce_scatter, ranks, bytes, groups, transport);
    both += time(Collective::all_gather, ranks, bytes, groups, transport);
    both.band = std::max(both.band, all_reduce_band);
    both.extrapolation |= bits(Extrapolation::all_reduce);
    return both;
  }
  if (of.measured.empty())
    throw MissingValue({source_, 0, std::string(word_of(operation))},
                       fmt::format("time of {}", word_of(operation)),
                       "give nccl-tests output of this operation with --curves, or name a calibration");
  const auto ranks_index = static_cast<std::size_t>(std::min(ranks, max_table_ranks));
  const Group& group = of.groups[ranks_index];
  Estimate estimate{group.table.at(bytes), group.band + repeat_band(bytes), group.extrapolation | always_};
  if (ranks > max_table_ranks) {
    estimate.seconds *= traffic_factor(operation, ranks) / traffic_factor(operation, max_table_ranks);
    if (always_ == 0) estimate.extrapolation |= bits(Extrapolation::group_size);
  }
  if (always_ != 0) {
    estimate.band = uncalibrated_band;
    estimate.extrapolation = always_;
  } else if (bytes > group.max_bytes) {
    estimate.band += bytes_above_band;
    estimate.extrapolation |= bits(Extrapolation::bytes);
  }
  if (always_ == 0 && group.class_band > 0) {
    estimate.band = std::max(estimate.band, group.class_band);  // which is of whole hosts: it holds the rest
    estimate.extrapolation |= bits(Extrapolation::link_class);
  }
  if (groups <= 1) return estimate;
  if (const auto crowd = of.at_once.find({ranks, groups}); crowd != of.at_once.end()) {
    estimate.seconds = crowd->second.table.at(bytes);
    return estimate;
  }
  // Bytes per second of all ranks: of the groups as if each were alone, and of one group of all ranks.
  const auto throughput = [&](int n) {
    const Group& all = of.groups[static_cast<std::size_t>(std::min(n, max_table_ranks))];
    return (std::min(n, max_table_ranks) - 1) * bytes / all.table.at(bytes);
  };
  const double shared = std::sqrt(std::max(1.0, groups * throughput(ranks) / throughput(ranks * groups)));
  estimate.seconds *= shared;
  estimate.band = crowd_band(estimate.band, shared, group.class_band);
  return estimate;
}

Estimate TransferModel::hop(Transport transport, double bytes, int active) const {
  Estimate estimate = hop_alone(transport, bytes);
  if (active <= 2) return estimate;
  const Hop& of = hop(transport);
  if (const auto crowd = of.crowds.find(active); crowd != of.crowds.end()) {
    estimate.seconds = crowd->second.at(bytes);
    return estimate;
  }
  if (!has(Collective::all_gather)) return estimate;
  const double ratio = contended_hop(active, bytes).seconds / estimate.seconds;
  const double shared = std::sqrt(std::max(1.0, ratio));
  estimate.seconds *= shared;
  estimate.band = crowd_band(estimate.band, shared, of.class_band);
  return estimate;
}

Estimate TransferModel::hop_alone(Transport transport, double bytes) const {
  const Hop& of = hop(transport);
  if (!of.known)
    throw MissingValue(
        {source_, 0, std::string(word_of(transport))}, "time of a point-to-point transfer",
        "give nccl-tests output of a two-rank all-to-all with --curves, or name a calibration");
  Estimate estimate{of.table.at(bytes), repeat_band(bytes), always_};
  if (always_ != 0) {
    estimate.band = uncalibrated_band;
    return estimate;
  }
  if (of.class_band > 0) {
    estimate.band = of.class_band;
    estimate.extrapolation |= bits(Extrapolation::link_class);
    return estimate;
  }
  const bool from_pair = !of.measured || (transport == Transport::nccl && bytes < of.min_bytes);
  if (from_pair) {
    estimate.band += two_rank_band;
    estimate.extrapolation |= bits(Extrapolation::two_rank);
  }
  if (bytes > of.max_bytes || (!from_pair && bytes < of.min_bytes)) {
    estimate.band += bytes_above_band;
    estimate.extrapolation |= bits(Extrapolation::bytes);
  }
  return estimate;
}

Estimate TransferModel::contended_hop(int ranks, double bytes) const {
  if (ranks <= 1) return {};
  Estimate estimate = time(Collective::all_gather, ranks, ranks * bytes);
  estimate.seconds /= ranks - 1;
  return estimate;
}

std::vector<int> TransferModel::measured_ranks(Collective operation) const {
  std::vector<int> ranks;
  for (const auto& [count, measured] : curve(operation).measured) ranks.push_back(count);
  return ranks;
}

std::string contended_link_note(const TransferModel& curves, Transport transport, int ranks, double bytes) {
  if (ranks < 3 || bytes <= 0 || !curves.has(Collective::all_gather) || curves.measured_hops(transport))
    return "";
  const double factor = curves.contended_hop(ranks, bytes).seconds / curves.hop(transport, bytes).seconds;
  if (factor < 1.5) return "";
  return fmt::format(
      "ring hops are priced between a transfer of two ranks alone and a measured all-gather of {} ranks at "
      "once, "
      "which is {} times slower per hop: measure all hops at once (sendrecv_perf -g {}, then --curves)",
      ranks, format_fixed(factor, 1), ranks);
}

}  // namespace usp
