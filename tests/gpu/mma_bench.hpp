// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/backend.hpp"

#include <string>

namespace usp::test {

/// Prints "name fwd_tflops bwd_tflops" of each configuration that the filter names: names or parts of names,
/// commas between them; a whole name is that configuration alone. bwd is delta and gradients together, 2.5
/// times the forward's operations over the visible pairs. Each pass runs for `warm_up` seconds before it is
/// timed.
int run_bench(Backend backend, const std::string& filter, double warm_up);

}  // namespace usp::test
