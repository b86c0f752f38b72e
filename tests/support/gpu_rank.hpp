// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/copy_engine.hpp"
#include "usp/device/call_stream.hpp"
#include "usp/kernels/cuda_backends.hpp"

#include <memory>

namespace usp::test {

/// One rank of a GPU job: ranks take the GPUs there are, round and round, so that any mesh runs on one card.
struct GpuRank {
  device::CallStream stream;
  std::unique_ptr<kernels::Memory> memory;
  std::unique_ptr<comm::DataPlane> data_plane;

  explicit GpuRank(comm::Communicator& control, const comm::CopyEngineOptions& options = {})
      : stream(control.rank() % device::device_count()),
        memory(kernels::make_cuda_memory(stream)),
        data_plane(comm::make_copy_engine_data_plane(control, stream, options)) {}
};

}  // namespace usp::test
