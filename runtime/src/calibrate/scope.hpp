// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/communicator.hpp"
#include "usp/runtime/calibrate.hpp"
#include "usp/schedule/transport.hpp"

#include <optional>
#include <string>
#include <vector>

namespace usp::measure {

struct Machine;
class RankDevice;

/// What is measured on the ranks of a machine.
struct Scope {
  bool on_gpu = false;
  bool quick = false;
  std::vector<std::string> kernels{"cpu"};               ///< the first is timed beside transfers
  std::vector<std::optional<Transport>> transports{{}};  ///< of payload; on the host what joins the ranks
};

/// Throws UsageError for unknown kernels, for kernels of both hosts and GPUs, for flags of GPUs without one.
[[nodiscard]] bool measures_gpus(const CalibrateOptions& options);

/// Of the tensors of kernels and of their fits.
[[nodiscard]] DType dtype_of(const CalibrateOptions& options, bool on_gpu);

/// Collective. What all ranks can do of what the options ask for; on GPUs, where they name neither kernels
/// nor transports, all there are. Throws EnvironmentError where they name what some rank has not, UsageError
/// for ranks on cards of several kinds.
[[nodiscard]] Scope scope_of(const CalibrateOptions& options, const Machine& machine, RankDevice& device,
                             comm::Communicator& control);

}  // namespace usp::measure
