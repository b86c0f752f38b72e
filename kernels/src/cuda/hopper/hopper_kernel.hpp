// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../fallback.hpp"

#include "usp/kernels/cuda_backends.hpp"

#include <memory>

namespace usp::kernels::hopper {

[[nodiscard]] std::unique_ptr<AttentionKernel> make_kernel(Memory& memory, const CudaKernelOptions& options,
                                                           cuda::MakeFallback fallback);

}  // namespace usp::kernels::hopper
