// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/device/call_stream.hpp"
#include "usp/kernels/attention_kernel.hpp"
#include "usp/kernels/memory.hpp"

#include <memory>

/// What works in the memory of one GPU, in the order of one stream at a time (CallStream). Views and
/// everything that is per head (sinks, slopes, block patterns) lie in device memory; slices and ScoreTerms
/// themselves on the host. Every row of q and d_o that a slice names must hold finite numbers, also where it
/// sees nothing. P and dS are rounded to the input type before they are multiplied. All throw
/// EnvironmentError in a build without CUDA.
namespace usp::kernels {

/// Arenas of plain device memory (cudaMalloc). `stream` outlives the memory.
[[nodiscard]] std::unique_ptr<Memory> make_cuda_memory(device::CallStream& stream);
/// Arenas of the caller's allocator, which outlives the memory and its arenas.
[[nodiscard]] std::unique_ptr<Memory> make_cuda_memory(device::CallStream& stream, Allocator& allocator);

struct CudaKernelOptions {
  bool deterministic = false;  ///< gradients repeat bit for bit
};

/// Tensor cores by mma.sync, sm_80 and up: bf16 and fp16 with an fp32 state, head dims up to 256, everything
/// that AttentionKernel names. `memory` (of make_cuda_memory) gives the stream, and outlives the kernel.
[[nodiscard]] std::unique_ptr<AttentionKernel> make_mma_kernel(Memory& memory,
                                                               const CudaKernelOptions& options = {});

/// cuDNN's fused attention: whole blocks in bf16 or fp16, merged into the fp32 state by a kernel of this
/// project. What it does not do goes to the mma kernel.
[[nodiscard]] std::unique_ptr<AttentionKernel> make_cudnn_kernel(Memory& memory,
                                                                 const CudaKernelOptions& options = {});

/// Tensor copies and wgmma, compute capability 9.0: bf16 and fp16, any slices, an fp32 state carried without
/// a merge; forward to head dim 256, backward to 128. What it does not do, and everything on another GPU,
/// goes to the mma kernel.
[[nodiscard]] std::unique_ptr<AttentionKernel> make_hopper_kernel(Memory& memory,
                                                                  const CudaKernelOptions& options = {});

/// Forward as the hopper kernel, backward as cuDNN's, which leaves to the hopper kernel what it does not do.
[[nodiscard]] std::unique_ptr<AttentionKernel> make_hopper_cudnn_kernel(
    Memory& memory, const CudaKernelOptions& options = {});

}  // namespace usp::kernels
