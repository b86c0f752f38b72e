// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/progress.hpp"
#include "usp/comm/communicator.hpp"
#include "usp/planner/calibration_file.hpp"
#include "usp/runtime/devices.hpp"
#include "usp/schedule/transport.hpp"
#include "usp/schedule/types.hpp"
#include "usp/topology/cluster.hpp"

#include <functional>
#include <optional>
#include <string>
#include <vector>

/// `usp calibrate`: measures what the planner prices with, on the ranks that a launcher started or on
/// threads.
namespace usp {

struct CalibrateOptions {
  std::string name = "calibration";   ///< of the calibration: its file name without the extension
  std::string cluster;                ///< name of the cluster; empty: hosts and ranks
  std::string calibration_file;       ///< that the cluster names
  std::optional<int> ranks;           ///< threads; of a launcher's job, what it has to have; empty: two
  std::optional<RunOn> device;        ///< empty: that of the kernels
  std::vector<std::string> kernels;   ///< their words; empty: cpu, and on GPUs all that run there
  std::vector<int> devices;           ///< GPUs of the ranks, as RunOptions has them
  std::vector<Transport> transports;  ///< between GPUs; empty: all there are
  std::optional<DType> dtype;         ///< of the tensors of kernels; empty: fp32, on GPUs bf16
  bool quick = false;                 ///< few and small shapes, for a look
  double max_seconds = 300;           ///< sizes and repetitions are cut to stay within
  std::optional<double> nic_gb_s;  ///< line of every host's network; empty: as measured; of hosts that have
                                   ///< one, within a factor of 1000 of it (UsageError)
  std::string partial;             ///< file that finished parts are kept in; empty: none
  bool restart = false;            ///< forget what is there
  comm::CommOptions comm;
  WorkProgress* progress = nullptr;              ///< hears on rank 0's thread
  std::function<void(const std::string&)> note;  ///< for people, called on rank 0's thread
  std::function<bool()> interrupted;             ///< asked by rank 0 between calls; true ends all ranks
  std::function<void()> prepare;  ///< on rank 0, before anything else: what it throws ends all ranks
};

/// The call of a kernel's grid that its fit misses most.
struct KernelMiss {
  std::string kernel;  ///< its word
  bool backward = false;
  int head_dim = 0, head_dim_v = 0;
  std::string call;  ///< "16/16 x 1024 full"
  double off = 0;    ///< time by the fit over the measured one, less 1
};

struct CalibrateResult {
  CalibrationFile calibration;
  std::vector<KernelMiss> misses;  ///< one of each kernel, pass and head dims
  topology::Cluster cluster;       ///< hosts whose devices are the ranks
  std::string communicator;        ///< "threads", "mpi", "sockets"
  std::size_t parts = 0;           ///< measurements, of which
  std::size_t resumed = 0;         ///< so many came from the partial file
  double seconds = 0;
};

/// Collective. Ranks measure in one order and decide from gathered times alone, so that none waits for a
/// slower one longer than its work. Empty in processes without rank 0. Throws UsageError for an unknown
/// kernel or one of GPUs and where a launcher started another number of ranks, InvalidInput for a partial
/// file of another machine or other settings, naming what differs, EnvironmentError that says what is kept
/// where it was interrupted.
[[nodiscard]] std::optional<CalibrateResult> calibrate(const CalibrateOptions& options);

[[nodiscard]] std::string calibrate_text(const CalibrateResult& result);

}  // namespace usp
