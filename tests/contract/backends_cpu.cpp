// SPDX-License-Identifier: Apache-2.0
#include "backends_under_test.hpp"
#include "cpu_kernel.hpp"

#include "usp/kernels/backends.hpp"

namespace usp::test {

/// The reference and every CPU variant that this machine runs.
const std::vector<NamedBackend>& backends() {
  static const std::vector<NamedBackend> all = [] {
    std::vector<NamedBackend> found{
        {"reference", kernels::make_reference_kernel},
        {"generic", [] { return kernels::cpu::make_kernel(kernels::cpu::Isa::generic); }}};
    if (kernels::cpu::has_isa(kernels::cpu::Isa::avx2))
      found.push_back({"avx2", [] { return kernels::cpu::make_kernel(kernels::cpu::Isa::avx2); }});
    if (kernels::cpu::has_isa(kernels::cpu::Isa::avx512))
      found.push_back({"avx512", [] { return kernels::cpu::make_kernel(kernels::cpu::Isa::avx512); }});
    return found;
  }();
  return all;
}

}  // namespace usp::test
