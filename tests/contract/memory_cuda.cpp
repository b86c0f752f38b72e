// SPDX-License-Identifier: Apache-2.0
#include "device_mirror.hpp"
#include "memory_under_test.hpp"

namespace usp::test {

Memory* memory_under_test() {
  if (device_count() == 0) return nullptr;
  static const std::unique_ptr<Memory> memory = mirrored_cuda_memory();
  return memory.get();
}

}  // namespace usp::test
