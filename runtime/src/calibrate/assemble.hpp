// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "parts.hpp"
#include "rank_device.hpp"

#include "usp/planner/calibration_file.hpp"
#include "usp/runtime/calibrate.hpp"
#include "usp/topology/cluster.hpp"

#include <string>

namespace usp::measure {

/// The machine as it measured.
struct Measured {
  struct Kernel {
    std::string name, version;  ///< AttentionKernel::name(), and of its library
  };

  Machine machine;
  Scope scope;
  std::string communicator;     ///< Communicator::name()
  std::vector<Kernel> kernels;  ///< as Scope::kernels
  Results results;
  std::optional<Card> card{};  ///< of rank 0; empty: ranks of hosts
  std::string nccl{};          ///< its version; empty: not there
  std::string products{};      ///< library of matrix products; empty: none
};

/// Curves, fits and shares from all parts. Throws InvalidInput as fit_kernels does, EnvironmentError where no
/// kernel was measured.
[[nodiscard]] CalibrationFile calibration_of_parts(const Measured& measured, const CalibrateOptions& options);
/// Of each kernel, pass and head dims.
[[nodiscard]] std::vector<KernelMiss> misses_of(const Measured& measured, const CalibrationFile& calibration);
/// Line of each host in one direction, GB/s: the most that a hop between it and another reached; that of the
/// whole network where no pairs were measured or where all are as fast.
[[nodiscard]] std::vector<double> host_lines(const Measured& measured, double network_gb_s);
/// The hosts of the machine; each rank is a device with the rates of the calibration.
[[nodiscard]] topology::Cluster cluster_of(const Measured& measured, const CalibrationFile& calibration,
                                           const CalibrateOptions& options);

}  // namespace usp::measure
