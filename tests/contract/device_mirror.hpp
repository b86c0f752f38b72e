// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/device/device.hpp"
#include "usp/kernels/attention_kernel.hpp"

#include <functional>
#include <memory>

/// Brings the tests of host memory to a GPU: what works in device memory behind the face of what works in
/// host memory, and the other way round.
namespace usp::test {

/// A kernel that works in the memory given to it, seen as one that takes host views: every call uploads, runs
/// and downloads.
[[nodiscard]] std::unique_ptr<kernels::AttentionKernel> on_device(
    const std::function<std::unique_ptr<kernels::AttentionKernel>(kernels::Memory&)>& make);

/// A host kernel that takes device views: every call downloads, runs and uploads.
[[nodiscard]] std::unique_ptr<kernels::AttentionKernel> from_host(
    kernels::Memory& memory, std::unique_ptr<kernels::AttentionKernel> kernel);

/// make_cuda_memory for host views.
[[nodiscard]] std::unique_ptr<kernels::Memory> mirrored_cuda_memory();

}  // namespace usp::test
