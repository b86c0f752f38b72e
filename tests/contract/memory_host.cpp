// SPDX-License-Identifier: Apache-2.0
#include "memory_under_test.hpp"

namespace usp::test {

kernels::Memory* memory_under_test() {
  return &kernels::host_memory();
}

}  // namespace usp::test
