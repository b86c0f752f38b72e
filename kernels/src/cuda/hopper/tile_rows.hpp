// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace usp::kernels::hopper {

/// Query rows of a tile of the forward kernel and of the kernel of dQ alone: 64 for each of two warpgroups.
inline constexpr int query_rows = 128;

/// Key rows of a tile of the backward kernels, and query rows of a step.
struct KeyTile {
  int keys, step;
};
/// Query rows of a box that is added to dQ: those of a product.
inline constexpr int sum_rows = 64;

/// By padded head dims.
[[nodiscard]] constexpr KeyTile key_tile(int dk, int dv) {
  if (dk <= 64 && dv <= 64) return {128, 128};
  return dk <= 128 && dv <= 128 ? KeyTile{128, 64} : KeyTile{64, 64};
}

}  // namespace usp::kernels::hopper
