// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/communicator.hpp"

#include <memory>

namespace usp::device {
class CallStream;
}  // namespace usp::device

namespace usp::comm {

/// Moves device memory between ranks by the GPUs' copy engines, in the order of each rank's compute stream.
/// `control` carries ranks, addresses and events, and everything but point-to-point payload (groups,
/// collectives of host memory, watchdog, abort); its ranks are threads of this process, or processes of this
/// host.
///
/// Regions lie in device memory. A message starts when what was enqueued on both compute streams before it
/// was posted is done; wait() blocks the thread until the peer has posted its end, never for the GPU, and
/// lets what is enqueued next on the compute stream start after the message. So order on the stream takes the
/// place of completion: a region may be reused by work enqueued after wait(). test() and progress() are as
/// ever.
///
/// Between processes the rate from every peer is measured when the communicator is made; notes() reports it,
/// and names slow ways.
///
/// Several ranks may share a GPU. Collective. `compute` and `control` outlive the communicator. Throws
/// EnvironmentError when two GPUs cannot reach each other.
[[nodiscard]] std::unique_ptr<Communicator> make_copy_engine_communicator(Communicator& control,
                                                                          const device::CallStream& compute);

}  // namespace usp::comm
