// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/kernels/backends.hpp"
#include "usp/kernels/cuda_backends.hpp"
#include "usp/kernels/kernel_factory.hpp"

#include <algorithm>

namespace usp::kernels {
namespace {

#ifdef USP_BUILT_CUDA
constexpr bool built_cuda = true;
#else
constexpr bool built_cuda = false;
#endif
#ifdef USP_BUILT_CUDNN
constexpr bool built_cudnn = true;
#else
constexpr bool built_cudnn = false;
#endif

}  // namespace

const std::vector<KernelFactory>& kernel_factories() {
  static const std::vector<KernelFactory> list = {
      {cpu_traits.word, cpu_traits.on_gpu, [](Memory& memory, bool) { return make_cpu_kernel(memory); }},
      {"reference", false, [](Memory&, bool) { return make_reference_kernel(); }},
      {mma_traits.word, mma_traits.on_gpu,
       [](Memory& memory, bool deterministic) { return make_mma_kernel(memory, {deterministic}); },
       built_cuda},
      {cudnn_traits.word, cudnn_traits.on_gpu,
       [](Memory& memory, bool deterministic) { return make_cudnn_kernel(memory, {deterministic}); },
       built_cudnn},
      {hopper_traits.word, hopper_traits.on_gpu,
       [](Memory& memory, bool deterministic) { return make_hopper_kernel(memory, {deterministic}); },
       built_cuda},
      {hopper_cudnn_traits.word, hopper_cudnn_traits.on_gpu,
       [](Memory& memory, bool deterministic) { return make_hopper_cudnn_kernel(memory, {deterministic}); },
       built_cudnn}};
  return list;
}

const KernelFactory* find_factory(std::string_view word, const std::vector<KernelFactory>& factories) {
  const auto at = std::find_if(factories.begin(), factories.end(),
                               [&](const KernelFactory& factory) { return factory.word == word; });
  return at == factories.end() ? nullptr : &*at;
}

const KernelFactory& factory_of(Backend backend, const std::vector<KernelFactory>& factories) {
  const KernelFactory* const factory = find_factory(backend->word, factories);
  expects(factory != nullptr, "a backend has no kernel factory");
  return *factory;
}

std::string kernel_words(std::string_view before_last) {
  std::string words;
  for (const KernelFactory& factory : kernel_factories()) {
    const bool last = &factory == &kernel_factories().back();
    words += (words.empty() ? "" : std::string(last ? before_last : ", ")) + std::string(factory.word);
  }
  return words;
}

}  // namespace usp::kernels
