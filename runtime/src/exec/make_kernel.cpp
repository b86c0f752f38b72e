// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/make_kernel.hpp"

#include "require.hpp"

#include "usp/base/error.hpp"
#include "usp/kernels/backends.hpp"
#include "usp/kernels/cuda_backends.hpp"
#include "usp/schedule/words.hpp"

#include <fmt/format.h>

namespace usp {

std::unique_ptr<kernels::AttentionKernel> make_kernel(Backend backend, kernels::Memory& memory,
                                                      bool deterministic) {
  const bool on_host = memory.stream() == nullptr;
  require(on_host == (backend == Backend::cpu),
          fmt::format("backend {} does not work in the memory of {}; choose {}", word_of(backend),
                      on_host ? "the host" : "a GPU", on_host ? "cpu" : "mma or cudnn"));
  switch (backend) {
    case Backend::cpu:
      return kernels::make_cpu_kernel(memory);
    case Backend::mma:
      return kernels::make_mma_kernel(memory, {deterministic});
    case Backend::cudnn:
      return kernels::make_cudnn_kernel(memory, {deterministic});
  }
  throw InternalError("unknown backend");
}

}  // namespace usp
