// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/calibration.hpp"
#include "usp/schedule/compact.hpp"
#include "usp/schedule/placement.hpp"
#include "usp/topology/routes.hpp"

#include <deque>
#include <vector>

namespace usp {

/// What one byte per peer costs when all ranks of all groups make the same move at once.
struct TransferPattern {
  int peers = 0;                     ///< other ranks a rank sends to
  int intra_node_peers = 0;          ///< most of them that NVLink or the host's PCIe reaches, over ranks
  double intra_node_s_per_byte = 0;  ///< busiest resource inside hosts and NVLink domains
  double inter_node_s_per_byte = 0;  ///< busiest NIC, slot or uplink on the way between hosts
  bool crosses_network = false;
  bool over_pcie = false;  ///< some of the near peers are reached over PCIe
  int active = 0;          ///< devices of the fullest host that send over PCIe at once
  int hosts = 1;           ///< most that the peers of a rank lie on, its own included
  int network_active = 0;  ///< devices of the fullest host that send to other hosts at once
  friend bool operator==(const TransferPattern&, const TransferPattern&) = default;
};

/// Time of a move on the two kinds of links, which work side by side.
struct TransferTime {
  double intra_node_s = 0;
  double inter_node_s = 0;
  double band = 0;
  std::uint32_t extrapolation = 0;
};

/// Prices transfers on a cluster: routes every message of every group, then applies the time rule: busiest
/// resource, or the measured curve of that size and group where it is slower, plus the latency of one message
/// round. Patterns are remembered per mesh and placement.
class LinkPricer {
 public:
  /// Both must outlive the pricer.
  LinkPricer(const topology::Cluster& cluster, const Calibration& calibration);

  /// The patterns of one mesh and placement, which lie still as long as the pricer lives.
  struct MeshPatterns {
    Mesh mesh;
    Placement placement;
    const TransferPattern *ulysses = nullptr, *ring = nullptr, *world = nullptr;
    std::vector<const TransferPattern*> shifts;  ///< by outer * ring_inner + inner
    std::deque<TransferPattern> distinct;
  };
  [[nodiscard]] MeshPatterns& patterns(const Mesh& mesh, const Placement& placement);
  /// Equal patterns of a mesh are one object.
  [[nodiscard]] const TransferPattern& pattern(MeshPatterns& patterns, schedule::Peers peers,
                                               RingShift shift);
  /// @param bytes_per_peer mean over the peers of the rank that sends or receives most
  [[nodiscard]] TransferTime time(const TransferPattern& pattern, schedule::Peers peers, WriteMode mode,
                                  double bytes_per_peer, Transport transport) const;

  /// Between hosts, of any term: one latency, and `line_s` (what the busiest line takes at its rate when each
  /// remote byte enters a host once) at the share of the line that the operation reaches.
  /// @param near ranks of a group on one host; @param bytes of a collective as CollectiveRow::bytes
  [[nodiscard]] Estimate between_hosts(NetworkOperation operation, int hosts, int near, double bytes,
                                       double line_s) const;

  /// Devices whose messages are followed for one pattern: those of one host where all hosts are alike.
  [[nodiscard]] i64 sources_followed(const Mesh& mesh, const Placement& placement) const;

  [[nodiscard]] const Calibration& calibration() const { return calibration_; }
  [[nodiscard]] const topology::Cluster& cluster() const { return cluster_; }

 private:
  /// Bytes per resource of the pattern that is being measured.
  struct Loads {
    std::vector<double> bytes;
    std::vector<int> loaded;
    void add(int resource, double share) {
      double& sum = bytes[static_cast<std::size_t>(resource)];
      if (sum == 0) loaded.push_back(resource);
      sum += share;
    }
    void clear() {
      for (const int i : loaded) bytes[static_cast<std::size_t>(i)] = 0;
      loaded.clear();
    }
  };

  [[nodiscard]] TransferPattern measure(const Mesh& mesh, const Placement& placement, schedule::Peers peers,
                                        RingShift shift);
  void load_rails_of_all_hosts();
  [[nodiscard]] bool node_symmetric(const Mesh& mesh, const Placement& placement) const;

  [[nodiscard]] Estimate intra_node(const TransferPattern& pattern, schedule::Peers peers, WriteMode mode,
                                    double bytes_per_peer, Transport transport) const;
  void inter_node(const TransferPattern& pattern, schedule::Peers peers, WriteMode mode,
                  double bytes_per_peer, TransferTime& result) const;
  [[nodiscard]] bool measured_inter_node(const TransferPattern& pattern, NetworkOperation operation,
                                         double bytes_per_peer, TransferTime& result) const;

  const topology::Cluster& cluster_;
  const Calibration& calibration_;
  topology::LinkTable table_;
  int devices_per_node_ = 0;  ///< 0: nodes differ, or several are below one leaf
  std::deque<MeshPatterns> patterns_;
  Loads intra_node_, inter_node_;
  std::size_t last_ = 0;
};

}  // namespace usp
