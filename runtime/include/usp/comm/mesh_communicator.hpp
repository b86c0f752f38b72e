// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/data_plane.hpp"
#include "usp/schedule/mesh.hpp"
#include "usp/schedule/transport.hpp"

#include <memory>
#include <vector>

namespace usp::device {
class CallStream;
}  // namespace usp::device

namespace usp::comm {

/// What carries payload along each axis of a mesh of GPUs.
struct AxisTransports {
  usp::Transport ring = usp::Transport::copy_engine;
  usp::Transport ulysses = usp::Transport::copy_engine;
};

/// The communicators of one rank of a ring x ulysses mesh: all ranks, its ring and its ulysses group. Payload
/// goes through data_plane(); the groups are for collectives of host memory along an axis, and for libraries
/// that split the mesh further. One thread, as Communicator.
class MeshCommunicator {
 public:
  /// Collective over `control`, whose rank p is the mesh's rank p and which outlives this. Ranks are on
  /// hosts: `control` carries the payload itself. Throws UsageError where the counts of ranks differ.
  MeshCommunicator(Communicator& control, const Mesh& mesh);
  /// Ranks are on GPUs: one transport for all ranks, or one per axis. `compute` outlives this. Throws
  /// as make_copy_engine_data_plane and make_nccl_communicator do.
  MeshCommunicator(Communicator& control, const Mesh& mesh, const device::CallStream& compute,
                   AxisTransports transports);
  ~MeshCommunicator();
  MeshCommunicator(const MeshCommunicator&) = delete;
  MeshCommunicator& operator=(const MeshCommunicator&) = delete;

  [[nodiscard]] const Mesh& mesh() const { return mesh_; }
  [[nodiscard]] int rank() const { return control_.rank(); }
  /// All ranks, in the mesh's order.
  [[nodiscard]] Communicator& world() { return control_; }
  [[nodiscard]] DataPlane& data_plane() { return *payload_; }
  /// The ranks of this rank's ulysses column, by ring row.
  [[nodiscard]] Communicator& ring() { return *ring_; }
  /// The ranks of this rank's ring row, by ulysses column.
  [[nodiscard]] Communicator& ulysses() { return *ulysses_; }

  /// Ends the job on every rank (Communicator::abort).
  void abort(const CommunicationFault& fault) { world().abort(fault); }

 private:
  void make_groups();
  void connect(const device::CallStream& compute, AxisTransports transports);

  Communicator& control_;
  Mesh mesh_;
  std::unique_ptr<Communicator> ring_, ulysses_;  ///< control plane of the axes
  std::vector<std::unique_ptr<DataPlane>> axes_;  ///< payload along one axis each; go before the groups
  std::unique_ptr<DataPlane> payload_;
};

}  // namespace usp::comm
