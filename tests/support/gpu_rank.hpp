// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/copy_engine.hpp"
#include "usp/device/device.hpp"
#include "usp/kernels/cuda_backends.hpp"

#include <memory>

namespace usp::test {

/// One rank of a GPU job: ranks take the GPUs there are, round and round, so that any mesh runs on one card.
struct GpuRank {
  Stream stream;
  std::unique_ptr<Memory> memory;
  std::unique_ptr<Communicator> communicator;

  explicit GpuRank(Communicator& control)
      : stream(control.rank() % device_count()),
        memory(make_cuda_memory(stream)),
        communicator(make_copy_engine_communicator(control, stream)) {}
};

}  // namespace usp::test
