// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/communicator.hpp"

#include <string>
#include <vector>

/// How fast a process's copy engine gets what other processes own. CUDA IPC stages copies through the host,
/// at a tenth of the rate and without an error, where peer access was not open both ways; so the rate is
/// measured, not assumed.
namespace usp::comm {

struct PeerRate {
  int peer = 0;
  bool same_device = false;
  double bytes_per_s = 0;
};

/// Copies some MiB from every peer, all ranks at once, each from another one. Collective; peer access is
/// open. One entry per peer. The memory it takes is given back.
[[nodiscard]] std::vector<PeerRate> measure_peer_rates(Communicator& control, int device,
                                                       const std::vector<bool>& same_device);

/// What a user should know: the range of the rates on rank 0, and every way between different GPUs that is
/// slower than NVLink on any card that has it.
[[nodiscard]] std::vector<std::string> rate_notes(int rank, const std::vector<PeerRate>& rates);

}  // namespace usp::comm
