// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/attention_kernel.hpp"
#include "usp/schedule/rank_schedule.hpp"

#include <vector>

/// How the runtime executes an operation: one function per record of usp/schedule/operation.hpp.
namespace usp {

/// One step of a rank, with its buffers in memory.
struct StepCall {
  const schedule::Step* step = nullptr;
  const kernels::View* views = nullptr;  ///< by tensor; data is null where the step has no such buffer
  kernels::AttendScope scope;    ///< query heads of the step; slices and backend where it works on pairs
  const double* sink = nullptr;  ///< per global query head, in the kernel's memory; null: none
  double* d_sink = nullptr;      ///< added to
  [[nodiscard]] const kernels::View& operator[](Tensor tensor) const {
    return views[static_cast<std::size_t>(tensor)];
  }
};

struct OperationKernel {
  const schedule::Operation* operation = nullptr;
  void (*run)(kernels::AttentionKernel& kernel,
              const StepCall& call) = nullptr;  ///< local; as AttentionKernel
};

/// attend, delta and attend_grad.
[[nodiscard]] const std::vector<OperationKernel>& operation_kernels();

}  // namespace usp
