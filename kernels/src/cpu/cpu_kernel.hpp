// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tile_ops.hpp"

#include "usp/kernels/attention_kernel.hpp"

#include <memory>

namespace usp::kernels::cpu {

/// make_cpu_kernel() with an instruction set of choice. Throws InternalError when this machine lacks it.
[[nodiscard]] std::unique_ptr<AttentionKernel> make_kernel(Isa isa, Memory& memory = host_memory());

}  // namespace usp::kernels::cpu
