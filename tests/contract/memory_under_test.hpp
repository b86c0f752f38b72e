// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/memory.hpp"

namespace usp::test {

/// Takes host views, whatever memory it works in; null where the machine has none of it.
[[nodiscard]] kernels::Memory* memory_under_test();

}  // namespace usp::test
