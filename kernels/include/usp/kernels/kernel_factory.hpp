// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/attention_kernel.hpp"
#include "usp/schedule/backend.hpp"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace usp::kernels {

/// How a kernel is made: one record per kernel that runs name.
struct KernelFactory {
  std::string_view word;  ///< that of the backend (BackendTraits), where plans name the kernel
  bool on_gpu = false;    ///< works in the memory of a GPU; else of the host
  /// The kernel in `memory`, which outlives it. `deterministic`: gradients repeat bit for bit on GPUs too.
  /// Throws EnvironmentError where the machine or the build lacks what the kernel needs.
  std::unique_ptr<AttentionKernel> (*make)(Memory& memory, bool deterministic) = nullptr;
  bool built = true;  ///< this build has it; the machine may still lack what it loads
};

/// Of all backends, and of the reference.
[[nodiscard]] const std::vector<KernelFactory>& kernel_factories();
/// Null where no factory has the word.
[[nodiscard]] const KernelFactory* find_factory(
    std::string_view word, const std::vector<KernelFactory>& factories = kernel_factories());
/// Of a backend that has one; throws InternalError otherwise.
[[nodiscard]] const KernelFactory& factory_of(
    Backend backend, const std::vector<KernelFactory>& factories = kernel_factories());
/// "a, b, c", with another text before the last word.
[[nodiscard]] std::string kernel_words(std::string_view before_last = ", ");

}  // namespace usp::kernels
