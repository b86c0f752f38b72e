// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "blocks.hpp"

#include "usp/device/device.hpp"
#include "usp/kernels/cuda_backends.hpp"

#include <functional>
#include <memory>
#include <string>

namespace usp::cuda::cudnn {

/// Makes the kernel that takes what cuDNN does not; called at the first need.
using MakeFallback = std::function<std::unique_ptr<AttentionKernel>()>;

[[nodiscard]] std::unique_ptr<AttentionKernel> make_kernel(Memory& memory, const CudaKernelOptions& options,
                                                           MakeFallback fallback);

/// What decides about a whole call before its slices are looked at.
struct CallTraits {
  DType type = DType::bf16;
  i64 dqk = 0, dv = 0;
  Range query_heads;
  int group = 1;
  const ScoreTerms* terms = nullptr;
  bool backward = false, deterministic = false, has_o = true;
  int compute_major = 9;
};
/// Why cuDNN does not take a call; empty when it does.
[[nodiscard]] std::string why_not(const CallTraits& call);
/// The same for one block.
[[nodiscard]] std::string why_not(const Block& block);

}  // namespace usp::cuda::cudnn
