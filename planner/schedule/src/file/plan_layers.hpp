// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/plan_file.hpp"

#include <string>

namespace usp {

/// Refuses lists of layers that contradict one another or the model's count of layers, and decisions for more
/// layers than it has: InvalidInput that names the place in `file`.
void check_layer_lists(const PlanFile& plan, const std::string& file);

}  // namespace usp
