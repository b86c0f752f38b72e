// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "region_planes.hpp"

#include "usp/device/check.cuda.hpp"

namespace usp::comm {

/// Enqueues the move of one payload between any memory that a GPU reaches, as copies at a pitch. Returns its
/// bytes.
inline i64 enqueue_copies(const Message& from, const Message& to, cudaStream_t stream) {
  i64 moved = 0;
  for_each_plane(from, to, [&](const Copy2d& p) {
    moved += p.width * p.height;
    const auto size = [](i64 n) { return static_cast<std::size_t>(n); };
    device::check_cuda(p.height == 1
                           ? cudaMemcpyAsync(p.to, p.from, size(p.width), cudaMemcpyDefault, stream)
                           : cudaMemcpy2DAsync(p.to, size(p.to_pitch), p.from, size(p.from_pitch),
                                               size(p.width), size(p.height), cudaMemcpyDefault, stream),
                       "a copy of a message's payload");
  });
  return moved;
}

}  // namespace usp::comm
