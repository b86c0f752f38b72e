// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/topology/cluster.hpp"

#include <string>
#include <vector>

/// Peer-to-peer access between the devices of a host. Not installed.
namespace usp::topology {

/// The matrix of `nvidia-smi topo -p2p r` (or w): which device copies to which.
struct PeerAccess {
  std::vector<int> devices;             ///< numbers behind GPU, by column
  std::vector<std::vector<bool>> open;  ///< by row and column; a device and itself: true
  std::vector<std::string> notes;       ///< what was stripped or ignored
};

/// Throws InvalidInput with file, line and token for a text that is no such matrix: a missing row or cell, a
/// label twice, a state that nvidia-smi does not print.
[[nodiscard]] PeerAccess read_peer_access(const std::string& text, const std::string& file);

/// States for every card whether its devices copy peer to peer over PCIe, by the matrix of a host that `file`
/// held. A host where but some pairs do counts as one where none does, which a note says; pairs that NVLink
/// joins do not count, and a note says where none is left. Throws InvalidInput where a device has no row.
/// @param selected the cluster's devices are some of their hosts'; else InvalidInput for a row of no device
void apply_peer_access(Cluster& cluster, const PeerAccess& matrix, const std::string& file, bool selected);
/// The same. @param access "yes", "no", or a file with the matrix of a host; InvalidInput as read_peer_access
void apply_peer_access(Cluster& cluster, const std::string& access, bool selected);

}  // namespace usp::topology
