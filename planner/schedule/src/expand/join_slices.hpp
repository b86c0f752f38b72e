// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/schedule/slice.hpp"

#include <cstddef>
#include <vector>

namespace usp::schedule {

/// Slices from `begin` on whose keys continue one another, in memory and in position, become one.
void join_slices(std::vector<Slice>& slices, std::size_t begin);

}  // namespace usp::schedule
