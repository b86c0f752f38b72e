// SPDX-License-Identifier: Apache-2.0
#include "usp/planner/compare.hpp"
#include "usp/planner/pricing.hpp"

#include <map>
#include <numeric>
#include <tuple>

namespace usp {
namespace {

using schedule::Peers;
using schedule::TransferOp;

class Crossing {
 public:
  Crossing(const topology::Cluster& cluster, const Mesh& mesh, const Placement& placement)
      : cluster_(cluster), mesh_(mesh), placement_(placement) {}

  /// Share of the messages of a move that leave host and NVLink domain.
  double share(const TransferOp& move) {
    const auto key = std::tuple(move.peers, move.shift.outer, move.shift.inner);
    const auto found = shares_.find(key);
    if (found != shares_.end()) return found->second;
    i64 all = 0, crossing = 0;
    for (int group = 0; group < placement_.groups(); ++group)
      for (int rank = 0; rank < mesh_.size(); ++rank)
        each_peer(move, rank, [&](int peer) {
          if (peer == rank) return;
          ++all;
          crossing +=
              crosses(placement_.device_of(mesh_, group, rank), placement_.device_of(mesh_, group, peer));
        });
    return shares_[key] = all > 0 ? static_cast<double>(crossing) / static_cast<double>(all) : 0;
  }

 private:
  [[nodiscard]] bool crosses(int a, int b) const {
    const topology::Device& x = cluster_.devices[static_cast<std::size_t>(a)];
    const topology::Device& y = cluster_.devices[static_cast<std::size_t>(b)];
    return x.node != y.node && (x.nvlink_domain < 0 || x.nvlink_domain != y.nvlink_domain);
  }

  template <class Each>
  void each_peer(const TransferOp& move, int rank, const Each& each) const {
    const int r = mesh_.ring_of(rank), u = mesh_.ulysses_of(rank);
    switch (move.peers) {
      case Peers::self:
        return;
      case Peers::shift:
        return each(mesh_.rank(mesh_.row_at(r, move.shift), u));
      case Peers::every_ulysses:
        for (int other = 0; other < mesh_.ulysses; ++other) each(mesh_.rank(r, other));
        return;
      case Peers::every_ring:
        for (int other = 0; other < mesh_.ring(); ++other) each(mesh_.rank(other, u));
        return;
      case Peers::all_ranks:
        for (int other = 0; other < mesh_.size(); ++other) each(other);
    }
  }

  const topology::Cluster& cluster_;
  const Mesh& mesh_;
  const Placement& placement_;
  std::map<std::tuple<Peers, std::int16_t, std::int16_t>, double> shares_;
};

}  // namespace

LinkBytes link_bytes(const topology::Cluster& cluster, const AttentionPlan& plan, const Documents& documents,
                     const Placement& placement, Pass pass) {
  const schedule::TokenMap geometry(plan, documents);
  schedule::CompactSchedule compact;
  schedule::generate(plan, geometry.heads().shared_kv(), compact);
  Crossing crossing(cluster, plan.mesh, placement);
  LinkBytes bytes;
  const auto ranks = static_cast<std::size_t>(plan.mesh.size());
  for (const TransferOp& move : compact.of(pass).transfers) {
    Ledger ledger{std::vector<i64>(ranks, 0), std::vector<i64>(ranks, 0)};
    add_move(geometry, move, ledger);
    const double sent = static_cast<double>(std::accumulate(ledger.sent.begin(), ledger.sent.end(), i64{0})) /
                        static_cast<double>(ranks);
    const double share = crossing.share(move);
    bytes.nics += sent * share;
    bytes.inside += sent * (1 - share);
  }
  return bytes;
}

}  // namespace usp
