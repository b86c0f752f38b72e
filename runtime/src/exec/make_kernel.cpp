// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/make_kernel.hpp"

#include "require.hpp"

#include <fmt/format.h>

namespace usp {

std::unique_ptr<kernels::AttentionKernel> make_kernel(Backend backend, kernels::Memory& memory,
                                                      bool deterministic,
                                                      const std::vector<kernels::KernelFactory>& factories) {
  const bool on_gpu = memory.stream() != nullptr;
  require(on_gpu == backend->on_gpu,
          fmt::format("backend {} does not work in the memory of {}; choose {}", word_of(backend),
                      on_gpu ? "a GPU" : "the host",
                      on_gpu ? gpu_backend_words() : std::string(word_of(Backend{}))));
  return kernels::factory_of(backend, factories).make(memory, deterministic);
}

}  // namespace usp
