// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/data_plane.hpp"

#include <memory>

namespace usp::device {
class CallStream;
}  // namespace usp::device

namespace usp::comm {

struct CopyEngineOptions {
  /// Ranks that share a GPU have gates too. For calls so small that the kernels of all of them, and copies,
  /// fit on it together, as in tests; others hang until the watchdog ends them.
  bool gates_on_shared_gpus = false;
};

/// Moves device memory between ranks by the GPUs' copy engines, in the order of each rank's compute stream.
/// `control` carries addresses when channels are connected, and everything but payload; its ranks are threads
/// of this process, or processes of this host.
///
/// A transfer starts when what was enqueued on both compute streams before its start is done; what is
/// enqueued after its wait comes after it. Ranks agree on that by flags that their streams set and await, so
/// that no host waits for another rank, and nothing but payload and flags travels. A wait of a stream that
/// lasts longer than CommOptions::watchdog_s ends the job (DataPlane::check). Ranks that are threads use
/// events instead, but in CUDA graphs: their hosts wait until the peer's thread has come as far. While such
/// ranks replay graphs, none may call what waits for a GPU inside the driver (cudaMalloc, cudaFree, pageable
/// copies), or run far ahead of the others; threads that share a GPU cannot capture.
///
/// Peers copy from and into peer_arena() alone. Between processes the rate from every peer is measured when
/// the data plane is made; notes() reports it, and names slow ways.
///
/// Kernels may wait for receives inside their launches (Channels::gate) where every rank has a GPU of its
/// own, but not in CUDA graphs: a second rank's kernels could not start beside one that waits, and a replay
/// would find the flags of the pass before.
///
/// Collective. `compute` and `control` outlive it. Throws EnvironmentError when two GPUs cannot reach each
/// other.
[[nodiscard]] std::unique_ptr<DataPlane> make_copy_engine_data_plane(Communicator& control,
                                                                     const device::CallStream& compute,
                                                                     const CopyEngineOptions& options = {});

}  // namespace usp::comm
