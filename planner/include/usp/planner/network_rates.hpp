// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/words.hpp"
#include "usp/planner/time_table.hpp"

#include <optional>
#include <string>
#include <utility>
#include <vector>

/// What transfers between hosts reach.
namespace usp {

/// A share of the NIC line rate with the range in which it was seen.
struct Efficiency {
  double value = 0;
  double low = 0;
  double high = 0;
  std::string source;
  bool measured = false;  ///< on the network that is priced

  /// Band as in Estimate.
  [[nodiscard]] double band() const;
};

/// One message between two hosts, beside its latency: bytes / (0.9 of the line).
[[nodiscard]] Efficiency inter_node_hop_efficiency();
/// All-to-all that crosses nodes. On rails .70 to .74 of the line (NVIDIA's slides for 4 DGX-H100: 48 of 64.6
/// GB/s); other fabrics have been seen at .24 (a cloud vendor's nccl-tests guide).
[[nodiscard]] Efficiency inter_node_alltoall_efficiency(bool rails);
/// Ring collectives over NICs, by nodes and the collective's bytes (SimAI's efficiency table, 2 to 128 nodes,
/// 16 MB to 1 GB).
[[nodiscard]] Efficiency inter_node_ring_efficiency(int nodes, double bytes);

enum class NetworkOperation { hop, alltoall, all_gather, reduce_scatter };

template <>
struct WordTable<NetworkOperation> {
  static constexpr Word<NetworkOperation> words[] = {{"hop", NetworkOperation::hop},
                                                     {"alltoall", NetworkOperation::alltoall},
                                                     {"all_gather", NetworkOperation::all_gather},
                                                     {"reduce_scatter", NetworkOperation::reduce_scatter}};
};

/// A transfer across hosts, as it was measured: `groups` groups at once, each of `ranks_per_host` ranks on
/// each of `hosts` hosts. Of a hop, so many ranks of each host that send to the next host.
struct NetworkKey {
  NetworkOperation operation = NetworkOperation::hop;
  int hosts = 2;
  int ranks_per_host = 1;
  int groups = 1;

  /// Bytes that leave a host, over the bytes of one message of a rank.
  [[nodiscard]] double messages_per_host() const {
    if (operation == NetworkOperation::hop) return static_cast<double>(ranks_per_host) * groups;
    return static_cast<double>(groups) * ranks_per_host * ranks_per_host * (hosts - 1);
  }
  /// Messages that a rank's bytes (NetworkPoint::bytes) consist of.
  [[nodiscard]] int messages() const {
    return operation == NetworkOperation::hop ? 1 : hosts * ranks_per_host;
  }
  friend bool operator==(const NetworkKey&, const NetworkKey&) = default;
};

struct NetworkPoint {
  double bytes = 0;  ///< of a collective as CollectiveRow::bytes, of a hop those of its message
  double time_s = 0;
  friend bool operator==(const NetworkPoint&, const NetworkPoint&) = default;
};

/// Times of one key, and the share of the line that they come to beside the latency.
struct NetworkCurve {
  NetworkKey key;
  double share = 0, min_share = 0, max_share = 0;
  std::vector<NetworkPoint> points;  ///< by rising bytes
};

/// The network between the hosts of one machine.
struct MeasuredNetwork {
  double gb_s = 0;       ///< line of the slowest host in one direction, as measured or stated
  double latency_s = 0;  ///< of a message
  std::string source;
  std::vector<NetworkCurve> curves;
  std::optional<double> interference, min_interference, max_interference;  ///< added beside a kernel
};

/// The shares of all curves: of the longest message, and their range over the upper half of the sizes, each
/// widened by `spread`. Curves that were cut while the latency was most of their time get those of the
/// others.
void set_shares(MeasuredNetwork& network, double spread);

/// What a transfer beside an attention kernel adds to it: `share` of the shorter of the two times, between
/// `low` and `high` in the measurements; and what a tick of both takes whatever is moved.
struct Interference {
  double share = 0;
  double low = 0;
  double high = 0;
  std::string source;
  double tick_s = 0;  ///< of the hand-shakes around a kernel beside which a transfer flies; 0: not measured

  [[nodiscard]] double added_seconds(double attention_s, double transfer_s) const {
    return share * (attention_s < transfer_s ? attention_s : transfer_s);
  }
};

/// A share of the line, as a price takes it.
struct LineShare {
  double value = 1;
  double band = 0;  ///< as in Estimate
  bool measured = false;
};

/// What transfers between hosts reach: of every term that crosses NICs. Guesses until measured.
struct NetworkRates {
  Efficiency hop = inter_node_hop_efficiency();
  Efficiency exchange = inter_node_alltoall_efficiency(true);
  std::optional<Efficiency> gather, reduce_scatter;  ///< empty: inter_node_ring_efficiency
  double ring_factor = 1;                            ///< of that efficiency
  double latency_factor = 1;        ///< of the latency that the cluster states or NCCL's table gives
  std::optional<double> latency_s;  ///< measured, instead of that
  /// A transfer bound by the NIC holds few channels and little memory bandwidth beside attention.
  Interference beside{0.05, 0, 0.3, "a NIC's bytes through memory and the multiprocessors of its channels"};

  /// A measured curve on the lines of the network that it was measured on.
  struct Curve {
    NetworkKey key;
    TimeTable table;
    double band = 0;
    double least_bytes = 0, most_bytes = 0;
  };
  std::vector<Curve> curves;
  double line_gb_s = 0;  ///< of the curves

  /// Of an operation over `hosts`. @param bytes of a collective as CollectiveRow::bytes
  [[nodiscard]] LineShare share(NetworkOperation operation, int hosts, double bytes) const;
  /// Null where the key was not measured.
  [[nodiscard]] const Curve* curve(const NetworkKey& key) const;
};

/// @param repeat relative half width of repeated measurements
[[nodiscard]] NetworkRates network_rates(const MeasuredNetwork& measured, double repeat);
/// The same on a network that it was not measured on: shares without curves, no longer measured.
[[nodiscard]] NetworkRates on_another_network(NetworkRates rates);

}  // namespace usp
