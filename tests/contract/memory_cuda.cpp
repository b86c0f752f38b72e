// SPDX-License-Identifier: Apache-2.0
#include "device_mirror.hpp"
#include "memory_under_test.hpp"

namespace usp::test {

kernels::Memory* memory_under_test() {
  if (device::device_count() == 0) return nullptr;
  static const std::unique_ptr<kernels::Memory> memory = mirrored_cuda_memory();
  return memory.get();
}

}  // namespace usp::test
