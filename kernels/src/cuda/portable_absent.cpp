// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/kernels/cuda_backends.hpp"

namespace usp {

std::unique_ptr<AttentionKernel> make_portable_kernel(Memory&, const CudaKernelOptions&) {
  throw EnvironmentError("this build has no portable GPU kernel; use cuDNN for what it takes, or the CPU");
}

}  // namespace usp
