// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "region_planes.hpp"

#include <vector>

namespace usp::comm {

/// Adds the move of one payload as copies at a pitch. Returns its bytes.
inline i64 append_copies(const Message& from, const Message& to, std::vector<device::Copy2d>& copies) {
  return for_each_plane(from, to, [&](const device::Copy2d& plane) { copies.push_back(plane); });
}

/// Enqueues the move of one payload by copy engines, between any memory that a GPU reaches.
inline void enqueue_copies(const Message& from, const Message& to, device::StreamHandle stream) {
  for_each_plane(from, to, [&](const device::Copy2d& plane) {
    device::enqueue_plane_copies(&plane, 1, device::CopyBy::engine, stream);
  });
}

}  // namespace usp::comm
