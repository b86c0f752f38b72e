// SPDX-License-Identifier: Apache-2.0
#include "usp/comm/mesh_communicator.hpp"

#include "usp/base/error.hpp"
#include "usp/comm/copy_engine.hpp"
#include "usp/comm/nccl.hpp"
#include "usp/comm/routed_data_plane.hpp"
#include "usp/schedule/validate.hpp"

#include <fmt/format.h>

#include <utility>

namespace usp::comm {
namespace {

[[nodiscard]] std::unique_ptr<DataPlane> make_data_plane(usp::Transport kind, Communicator& control,
                                                         const device::CallStream& compute) {
  if (kind == usp::Transport::nccl)
    return make_message_data_plane(make_nccl_communicator(control, compute), control);
  return make_copy_engine_data_plane(control, compute);
}

[[nodiscard]] std::vector<int> ring_ranks(const Mesh& mesh, int ulysses_column) {
  std::vector<int> ranks;
  for (int r = 0; r < mesh.ring(); ++r) ranks.push_back(mesh.rank(r, ulysses_column));
  return ranks;
}

[[nodiscard]] std::vector<int> ulysses_ranks(const Mesh& mesh, int ring_row) {
  std::vector<int> ranks;
  for (int u = 0; u < mesh.ulysses; ++u) ranks.push_back(mesh.rank(ring_row, u));
  return ranks;
}

}  // namespace

MeshCommunicator::MeshCommunicator(Communicator& control, const Mesh& mesh) : control_(control), mesh_(mesh) {
  check_mesh(mesh);
  if (mesh.size() != control.size())
    throw UsageError(fmt::format("the mesh has {} ranks, the communicator {}; give one of the mesh's ranks",
                                 mesh.size(), control.size()));
  make_groups();
  payload_ = make_message_data_plane(control);
}

MeshCommunicator::MeshCommunicator(Communicator& control, const Mesh& mesh, const device::CallStream& compute,
                                   AxisTransports transports)
    : MeshCommunicator(control, mesh) {
  connect(compute, transports);
}

MeshCommunicator::~MeshCommunicator() = default;

/// Every rank takes part in the making of every group; a group of one needs no peers.
void MeshCommunicator::make_groups() {
  for (int u = 0; u < mesh_.ulysses; ++u)
    if (auto group = control_.group(ring_ranks(mesh_, u))) ring_ = std::move(group);
  for (int r = 0; r < mesh_.ring(); ++r)
    if (auto group = control_.group(ulysses_ranks(mesh_, r))) ulysses_ = std::move(group);
  if (ring_ == nullptr) ring_ = make_serial_communicator();
  if (ulysses_ == nullptr) ulysses_ = make_serial_communicator();
}

void MeshCommunicator::connect(const device::CallStream& compute, AxisTransports transports) {
  if (mesh_.ring() == 1 || mesh_.ulysses == 1 || transports.ring == transports.ulysses) {
    payload_ = make_data_plane(mesh_.ulysses == 1 ? transports.ring : transports.ulysses, control_, compute);
    return;
  }
  std::vector<Route> routes(static_cast<std::size_t>(mesh_.size()));
  const auto join = [&](const std::vector<int>& ranks, Communicator& group, usp::Transport kind) {
    axes_.push_back(make_data_plane(kind, group, compute));
    for (std::size_t i = 0; i < ranks.size(); ++i)
      routes[static_cast<std::size_t>(ranks[i])] = {axes_.back().get(), static_cast<int>(i)};
  };
  join(ulysses_ranks(mesh_, mesh_.ring_of(rank())), *ulysses_, transports.ulysses);
  join(ring_ranks(mesh_, mesh_.ulysses_of(rank())), *ring_, transports.ring);
  payload_ = make_routed_data_plane(control_, {axes_[0].get(), axes_[1].get()}, std::move(routes));
}

}  // namespace usp::comm
