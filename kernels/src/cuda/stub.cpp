// SPDX-License-Identifier: Apache-2.0
#include "../device/no_cuda.hpp"

#include "usp/kernels/cuda_backends.hpp"

/// Replaces the GPU backends in a build without CUDA.
namespace usp::kernels {
std::unique_ptr<Memory> make_cuda_memory(device::CallStream&, Allocator&) {
  device::refuse_without_cuda();
}
std::unique_ptr<Memory> make_cuda_memory(device::CallStream&) {
  device::refuse_without_cuda();
}
std::unique_ptr<AttentionKernel> make_mma_kernel(Memory&, const CudaKernelOptions&) {
  device::refuse_without_cuda();
}
std::unique_ptr<AttentionKernel> make_cudnn_kernel(Memory&, const CudaKernelOptions&) {
  device::refuse_without_cuda();
}
std::unique_ptr<AttentionKernel> make_hopper_kernel(Memory&, const CudaKernelOptions&) {
  device::refuse_without_cuda();
}
std::unique_ptr<AttentionKernel> make_hopper_cudnn_kernel(Memory&, const CudaKernelOptions&) {
  device::refuse_without_cuda();
}

}  // namespace usp::kernels
