// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/attention_kernel.hpp"
#include "usp/schedule/plan.hpp"

#include <memory>

namespace usp {

/// The kernel of a backend, which works in `memory` and is outlived by it. `deterministic`: gradients repeat
/// bit for bit on GPUs too. Throws UsageError where the memory is of other hardware, EnvironmentError as
/// make_mma_kernel and make_cudnn_kernel do.
[[nodiscard]] std::unique_ptr<kernels::AttentionKernel> make_kernel(Backend backend, kernels::Memory& memory,
                                                                    bool deterministic);

}  // namespace usp
