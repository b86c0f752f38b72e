// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/kernels/cuda_backends.hpp"

/// What stands in for the GPU backends in a build without CUDA.
namespace usp {
namespace {

[[noreturn]] void refuse() {
  throw EnvironmentError(
      "this build has no CUDA support; configure with -DUSP_CUDA=ON on a machine that has nvcc");
}

}  // namespace

std::unique_ptr<Memory> make_cuda_memory(const Stream&) {
  refuse();
}
std::unique_ptr<AttentionKernel> make_portable_kernel(Memory&, const CudaKernelOptions&) {
  refuse();
}
std::unique_ptr<AttentionKernel> make_cudnn_kernel(Memory&, const CudaKernelOptions&) {
  refuse();
}

}  // namespace usp
