// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/words.hpp"
#include "usp/planner/estimate.hpp"
#include "usp/planner/time_table.hpp"
#include "usp/schedule/words.hpp"

#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace usp {

enum class Collective { alltoall, all_gather, reduce_scatter, all_reduce };

template <>
struct WordTable<Collective> {
  static constexpr Word<Collective> words[] = {{"alltoall", Collective::alltoall},
                                               {"all_gather", Collective::all_gather},
                                               {"reduce_scatter", Collective::reduce_scatter},
                                               {"all_reduce", Collective::all_reduce}};
};

/// Bytes on the wire per rank over `bytes`: nccl-tests' bus bandwidth is traffic_factor * bytes / seconds.
/// all-to-all, all-gather, reduce-scatter (n-1)/n; all-reduce 2(n-1)/n.
[[nodiscard]] constexpr double traffic_factor(Collective operation, int ranks) {
  const double share = static_cast<double>(ranks - 1) / ranks;
  return operation == Collective::all_reduce ? 2 * share : share;
}

/// One measured collective. `bytes` is nccl-tests' "size" column: the total one rank holds (all-to-all: all
/// it sends, its own part included; all-gather: all it receives; reduce-scatter: all it gives).
struct CollectiveRow {
  Collective operation;
  int ranks;
  double bytes;
  double seconds;
  int groups = 1;         ///< groups of `ranks` that made it at once on one host
  double class_band = 0;  ///< measured on another host of the same kind of links: how far such hosts differ
  std::optional<Transport> transport{};  ///< that carried it; empty: a library, or the host
};

/// One measured bidirectional transfer to a peer.
struct PeerTransferSample {
  Transport transport;
  double bytes;
  double seconds;
  int ranks = 2;  ///< of a ring whose hops all went at once
  double class_band = 0;
};

/// How far repeated measurements of one point lie apart (relative half width), below and from 1 MiB.
struct Repeatability {
  double below_1mib = 0.1;
  double from_1mib = 0.05;
};

/// Times of collectives and of point-to-point hops on one machine, from measured rows.
///
/// Group sizes that were not measured: bus bandwidth interpolated in log-log between two measured sizes;
/// above the largest it follows the last trend downwards (PCIe) and never upwards (a switch). Always flagged.
class TransferModel {
 public:
  TransferModel() = default;
  /// Throws InvalidInput (with `source` as the file) for a row with ranks < 2, bytes or seconds <= 0.
  TransferModel(std::vector<CollectiveRow> rows, std::vector<PeerTransferSample> hops, Repeatability repeat,
                std::string source);

  /// Data-sheet model: alpha_s + traffic_factor * bytes / gb_s for every group size; labelled uncalibrated.
  static TransferModel alpha_beta(double alpha_s, double gb_s);

  /// The same curves with those of the given rows put in place of the ones with equal operation and ranks,
  /// and `hops`, if any, in place of those of their transport.
  [[nodiscard]] TransferModel with(const std::vector<CollectiveRow>& rows, const std::string& source) const {
    return with(rows, {}, source);
  }
  [[nodiscard]] TransferModel with(const std::vector<CollectiveRow>& rows,
                                   const std::vector<PeerTransferSample>& hops,
                                   const std::string& source) const;

  /// The same curves on links `ratio` times as fast: what exceeds the shortest time of a group size shrinks
  /// by it. An assumption, for what-if.
  [[nodiscard]] TransferModel on_faster_links(double ratio) const;

  /// The curves as those of another host of this kind of links: rates times `ratio`, every band wider by
  /// `band`.
  [[nodiscard]] TransferModel borrowed(double ratio, double band) const;

  /// Curves of a PCIe host as those of one of which only the slots are known. Ranks that copy peer to peer
  /// all reach a pair's rate; those that copy through the host, or are not known to do otherwise, share what
  /// the pair has. Curves of two ranks stay.
  [[nodiscard]] TransferModel on_unknown_host(std::optional<bool> peer_to_peer) const;

  /// Some of the curves are those of another host.
  [[nodiscard]] bool borrows() const;
  /// The same with the rates of those curves times `factor`.
  [[nodiscard]] TransferModel borrowed_scaled(double factor) const;

  /// Throws MissingValue when the operation was not measured at any group size; an all-reduce is then a
  /// reduce-scatter and an all-gather. One rank takes no time.
  /// @param groups at once on links that they share (PCIe of one host). Not measured so: between alone and
  /// all groups in the throughput of one group of all ranks, their geometric mean, and the band reaches both
  /// @param transport copy engines: by their own curves, where they were measured
  [[nodiscard]] Estimate time(Collective operation, int ranks, double bytes, int groups = 1,
                              std::optional<Transport> transport = std::nullopt) const;

  /// `bytes` to a peer while as many come back. From measured point-to-point rows of that transport, else
  /// from a two-rank all-to-all of twice the bytes (half of which stays at home), flagged two_rank.
  /// @param active ranks of the host whose hops go at once over links that they share. Not measured so:
  /// between the hop alone and contended_hop(), their geometric mean, and the band reaches both
  [[nodiscard]] Estimate hop(Transport transport, double bytes, int active = 2) const;

  /// A hop while all `ranks` ranks of a ring send at once, by what a measured ring all-gather reaches:
  /// all_gather(ranks, ranks * bytes) / (ranks - 1). On a switch about hop(); on PCIe through one host it can
  /// be many times slower: a report says so where the two differ.
  [[nodiscard]] Estimate contended_hop(int ranks, double bytes) const;

  [[nodiscard]] bool has(Collective operation) const { return !curve(operation).measured.empty(); }
  [[nodiscard]] std::vector<int> measured_ranks(Collective operation) const;
  [[nodiscard]] bool measured_hops(Transport transport) const { return hop(transport).measured; }
  /// Mean and worst relative distance of the measured rows from their monotone curves.
  [[nodiscard]] double mean_error() const { return mean_error_; }
  [[nodiscard]] double worst_error() const { return worst_error_; }
  [[nodiscard]] const std::string& source() const { return source_; }
  [[nodiscard]] const Repeatability& repeatability() const { return repeat_; }

 private:
  static constexpr int max_table_ranks = 16;
  struct Measured {
    TimeTable table;
    double min_bytes = 0, max_bytes = 0, residual = 0, class_band = 0;
  };
  struct Group {
    TimeTable table;
    double max_bytes = 0, band = 0, class_band = 0;
    std::uint32_t extrapolation = 0;
  };
  struct Curve {
    std::map<int, Measured> measured;
    std::vector<Group> groups;                        ///< index = ranks, 2..max_table_ranks
    std::map<std::pair<int, int>, Measured> at_once;  ///< by ranks and groups, more than one
  };
  struct Hop {
    TimeTable table;
    bool measured = false;
    bool known = false;
    double min_bytes = 0, max_bytes = 0, class_band = 0;
    std::map<int, TimeTable> crowds;  ///< by ranks of a ring, more than two
  };

  [[nodiscard]] const Curve& curve(Collective operation,
                                   std::optional<Transport> transport = std::nullopt) const {
    const auto index = static_cast<std::size_t>(operation);
    const Curve& own = copy_engine_curves_[index];
    return transport == Transport::copy_engine && !own.measured.empty() ? own : curves_[index];
  }
  [[nodiscard]] const Hop& hop(Transport transport) const {
    return hops_[static_cast<std::size_t>(transport)];
  }
  using Curves = std::array<Curve, 4>;
  void fit_collectives();
  [[nodiscard]] bool only_copy_engines() const;
  void fill_groups(Curve& curve, Collective operation) const;
  [[nodiscard]] Group between(const Curve& curve, Collective operation, int ranks) const;
  void fit_hops();
  [[nodiscard]] Estimate hop_alone(Transport transport, double bytes) const;
  [[nodiscard]] double repeat_band(double bytes) const {
    return bytes < 1048576 ? repeat_.below_1mib : repeat_.from_1mib;
  }

  std::vector<CollectiveRow> rows_;
  std::vector<PeerTransferSample> hop_rows_;
  Repeatability repeat_;
  std::string source_;
  std::uint32_t always_ = 0;
  double mean_error_ = 0, worst_error_ = 0;
  Curves curves_;              ///< of NCCL, and of rows that name no transport
  Curves copy_engine_curves_;  ///< of rows that name copy engines
  std::array<Hop, 2> hops_;
};

/// One sentence where all ranks of a ring sending at once may be much slower than the two-rank curve that
/// hops are priced from (PCIe through one host); empty where the two agree or were not both measured.
[[nodiscard]] std::string contended_link_note(const TransferModel& curves, Transport transport, int ranks,
                                              double bytes);

}  // namespace usp
