// SPDX-License-Identifier: Apache-2.0
#include "usp/schedule/backend.hpp"

namespace usp {

const BackendTraits cpu_traits = {
    .word = "cpu", .display_name = "the CPU", .summary = "blockwise on the host, any input type"};

}  // namespace usp
