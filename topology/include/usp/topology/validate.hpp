// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "usp/topology/cluster.hpp"

namespace usp {

/// Checks every invariant of the value type: dense ids, indices in range, sorted links with a < b, domains and
/// devices that name each other, a value exactly where the provenance is not unknown. Throws InvalidInput.
void validate(const Cluster& cluster, const std::string& file);

/// Connected components over NVLink (or xGMI), each ascending, ordered by their first device; a lone device is its
/// own.
[[nodiscard]] std::vector<std::vector<int>> islands(const Cluster& cluster);

}  // namespace usp
