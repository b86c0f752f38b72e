// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/communicator.hpp"

#include <array>
#include <string>

namespace usp::comm {

/// A GPU, or an instance of one, as every process sees it.
struct GpuIdentity {
  std::string name;  ///< of the driver
  std::array<char, 16> uuid{};
};

/// Collective over ranks that compute on GPUs. Throws EnvironmentError on all ranks where they are on several
/// and one has a MIG instance: instances reach neither one another's memory nor other GPUs.
void require_whole_gpus(Communicator& control, const GpuIdentity& mine);

}  // namespace usp::comm
