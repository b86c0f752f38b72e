// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "simd.hpp"

namespace usp::cpu {
namespace {

/// Rows of a strip and vectors of a panel: strip_rows * panel_vectors sums, panel_vectors operands and one
/// broadcast fill the vector registers.
constexpr std::int64_t strip_rows = USP_STRIP;
constexpr int panel_vectors = USP_VECTORS;

/// Columns are cut into groups of panel_vectors vectors; two pairs rather than three and a single one, which
/// could not hide the latency of its sums.
constexpr std::int64_t group_vectors(std::int64_t left) {
  if (left == 4) return 2;
  return left < panel_vectors ? left : panel_vectors;
}

}  // namespace
}  // namespace usp::cpu
