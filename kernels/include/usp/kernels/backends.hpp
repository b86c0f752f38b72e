// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/attention_kernel.hpp"

#include <memory>

namespace usp::kernels {

/// The truth: plain loops, all arithmetic in fp64 whatever the types (a carried state still rounds to its
/// type). Its runs allocate.
[[nodiscard]] std::unique_ptr<AttentionKernel> make_reference_kernel();

/// Blockwise online softmax on the CPU with SIMD chosen at run time. Single-threaded: a rank is a thread.
/// Holds its own scratch, allocated when made or when a call is the first of its head dims; one instance per
/// rank.
[[nodiscard]] std::unique_ptr<AttentionKernel> make_cpu_kernel();
/// The same in host memory of the caller's (make_host_memory), which outlives the kernel.
[[nodiscard]] std::unique_ptr<AttentionKernel> make_cpu_kernel(Memory& memory);

}  // namespace usp::kernels
