// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/device/device.hpp"

#include <cstddef>
#include <cstdint>

namespace usp::device {

/// height rows of width bytes, each a pitch after the one before: what one 2D copy moves.
struct Copy2d {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  i64 from_pitch = 0, to_pitch = 0;
  i64 width = 0, height = 1;
  [[nodiscard]] i64 bytes() const { return width * height; }
};

/// What copies. Threads start within a few microseconds, where a copy engine takes some ten, and copy many
/// planes at once, but they take multiprocessors from other kernels and reach 0.9 of an engine's rate between
/// two GPUs.
enum class CopyBy : std::uint8_t { engine, threads };

/// Enqueues copies on a stream of the current device, of which none reads what another writes. Memory of that
/// device, of a peer that it has access to, or page-locked. By threads: less than 2^31 bytes each.
void enqueue_plane_copies(const Copy2d* copies, std::size_t count, CopyBy by, StreamHandle stream);

}  // namespace usp::device
