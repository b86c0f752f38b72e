// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/kernel_factory.hpp"
#include "usp/schedule/plan.hpp"

#include <memory>
#include <vector>

namespace usp {

/// The kernel of a backend, as KernelFactory::make. Throws UsageError where the memory is of other hardware.
[[nodiscard]] std::unique_ptr<kernels::AttentionKernel> make_kernel(
    Backend backend, kernels::Memory& memory, bool deterministic,
    const std::vector<kernels::KernelFactory>& factories = kernels::kernel_factories());

}  // namespace usp
