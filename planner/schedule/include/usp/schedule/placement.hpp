// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/mesh.hpp"

#include <string>
#include <vector>

namespace usp {

/// Which axis of the mesh lies on neighbouring devices.
enum class AxisOrder { ulysses_inner, ring_inner };

/// How the ranks of all groups lie on the machine. Device index of a rank, before `devices` permutes it:
/// (data replica * P + slot) * tensor + tensor rank, slot = r * U + u (ulysses_inner) or u * R + r
/// (ring_inner).
struct Placement {
  int data = 1;
  int tensor = 1;
  AxisOrder order = AxisOrder::ulysses_inner;
  std::vector<int> devices;  ///< device of each index; empty: the natural order

  [[nodiscard]] int groups() const { return data * tensor; }
  /// Device of rank p of group g = data replica * tensor + tensor rank.
  [[nodiscard]] int device_of(const Mesh& mesh, int group, int p) const {
    const int slot =
        order == AxisOrder::ulysses_inner ? p : mesh.ulysses_of(p) * mesh.ring() + mesh.ring_of(p);
    const int index = (group / tensor * mesh.size() + slot) * tensor + group % tensor;
    return devices.empty() ? index : devices[static_cast<std::size_t>(index)];
  }
  friend bool operator==(const Placement&, const Placement&) = default;
};

}  // namespace usp
