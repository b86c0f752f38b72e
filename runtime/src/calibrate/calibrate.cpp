// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/calibrate.hpp"

#include "rank_lab.hpp"

#include "usp/base/digest.hpp"
#include "usp/comm/agreement.hpp"
#include "usp/comm/mpi.hpp"
#include "usp/comm/ranks.hpp"
#include "usp/comm/sockets.hpp"
#include "usp/device/device.hpp"

#include <algorithm>
#include <chrono>

namespace usp {
namespace {

void agree_on(const CalibrateOptions& options, comm::Communicator& control) {
  Digest kernels, transports;
  for (const std::string& word : options.kernels) kernels.bytes(word);
  for (const Transport transport : options.transports) transports.add(transport);
  comm::agree(control,
              {{"--backend", kernels.value()},
               {"--device", Digest().add(measure::measures_gpus(options)).value()},
               {"--transport", transports.value()},
               {"--dtype", Digest().add(options.dtype ? 1 + static_cast<int>(*options.dtype) : 0).value()},
               {"--quick", Digest().add(options.quick).value()},
               {"--max-seconds", Digest().add(static_cast<i64>(options.max_seconds * 1e6)).value()}});
}

/// Threads on GPUs: one for each, where nothing else says how many.
std::optional<int> ranks_of(const CalibrateOptions& options) {
  if (options.ranks || !measure::measures_gpus(options) || comm::mpi_launched() || comm::torchrun_launched())
    return options.ranks;
  const auto named = static_cast<int>(options.devices.size());
  return std::max(1, named > 0 ? named : device::device_count());
}

}  // namespace

std::optional<CalibrateResult> calibrate(const CalibrateOptions& options) {
  CalibrateResult result;
  const auto body = [&](comm::Communicator& control) {
    if (control.rank() == 0 && options.prepare) options.prepare();
    agree_on(options, control);
    const auto begin = std::chrono::steady_clock::now();
    measure::RankLab lab(options, control);
    std::size_t resumed = 0;
    const measure::Measured measured = lab.measure_all(resumed);
    if (control.rank() != 0) return;
    result.resumed = resumed;
    result.calibration = calibration_of_parts(measured, options);
    result.misses = misses_of(measured, result.calibration);
    result.cluster = cluster_of(measured, result.calibration, options);
    result.communicator = control.name();
    result.parts = measured.results.size();
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  if (!comm::run_started_ranks(ranks_of(options), options.comm, body)) return std::nullopt;
  return result;
}

}  // namespace usp
