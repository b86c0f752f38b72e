// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/device/device.hpp"
#include "usp/kernels/cuda_backends.hpp"

#include <functional>
#include <memory>

namespace usp::kernels::cudnn {

/// Makes the kernel that takes what cuDNN does not; called at the first need.
using MakeFallback = std::function<std::unique_ptr<AttentionKernel>()>;

[[nodiscard]] std::unique_ptr<AttentionKernel> make_kernel(Memory& memory, const CudaKernelOptions& options,
                                                           MakeFallback fallback);

}  // namespace usp::kernels::cudnn
