// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "simd.hpp"

namespace usp::kernels::cpu {
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

/// Calls f with the number of vectors as a constant.
template <class F>
USP_INLINE void with_vectors(i64 vectors, const F& f) {
  if constexpr (panel_vectors >= 3)
    if (vectors == 3) return f(std::integral_constant<int, 3>());
  if (vectors == 2) return f(std::integral_constant<int, 2>());
  f(std::integral_constant<int, 1>());
}

}  // namespace
}  // namespace usp::kernels::cpu
