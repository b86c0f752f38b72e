// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/communicator.hpp"

#include <memory>
#include <string>

namespace usp::device {
class CallStream;
}  // namespace usp::device

namespace usp::comm {

/// libnccl can be loaded here, and this build knows its header.
[[nodiscard]] bool nccl_available();

/// "2.28.9"; empty where it is not available.
[[nodiscard]] std::string nccl_version();

/// Moves device memory between ranks by NCCL, in the order of each rank's compute stream: for what copy
/// engines cannot reach. One NCCL communicator per group of ranks; `control` (threads or MPI) carries the
/// bootstrap and everything but point-to-point payload. Same contract and stream semantics as the copy
/// engines (copy_engine.hpp); payload that is not contiguous passes through a staging buffer of its size.
///
/// Messages between two ranks are matched by tag inside one call of post(), and calls in their order: both
/// ends must start what belongs together in one call, as the ticks of a schedule do. Ranks may not share a
/// GPU. Collective. Throws EnvironmentError when NCCL is absent or refuses, CommunicationError when it fails
/// later: then its communicator is aborted, so that no rank hangs.
[[nodiscard]] std::unique_ptr<Communicator> make_nccl_communicator(Communicator& control,
                                                                   const device::CallStream& compute);

}  // namespace usp::comm
