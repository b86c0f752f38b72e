// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace usp::kernels::hopper {

/// Query rows of a tile of the forward kernel and of the kernel of dQ alone: 64 for each of two warpgroups.
inline constexpr int query_rows = 128;

/// Key rows of a tile of the backward kernels, and query rows of a step.
struct KeyTile {
  int keys, step;
};
/// Query rows of a box that is added to dQ: those of a warp.
inline constexpr int sum_rows = 16;

/// By padded head dims, of the kernels of dK and dV. With a softcap, registers of dK and dV of 192 and 128
/// columns do not suffice for 128 keys.
[[nodiscard]] constexpr KeyTile key_tile(int dk, int dv, bool softcap = false) {
  return dk <= (softcap ? 128 : 192) && dv <= 128 ? KeyTile{128, 64} : KeyTile{64, 64};
}
/// Of the kernel of all gradients: a step has as many scores as registers hold beside dK and dV.
[[nodiscard]] constexpr KeyTile backward_key_tile(int dk) {
  return dk <= 64 ? KeyTile{128, 128} : KeyTile{128, 64};
}

/// Padded head dims of backward, and the keys of a tile of the kernel of dQ alone.
struct GradTile {
  int dk, dv, keys;
  bool softcap;

  /// dQ is computed beside dK and dV, where it need not repeat bit for bit. Larger head dims are faster with
  /// a launch of its own: additions to memory cost more than two more products. That of a softcap needs
  /// registers that are not there.
  [[nodiscard]] constexpr bool adds_dq() const { return dk <= 128 && !softcap; }
  /// Of one launch for all gradients, or of that of dK and dV.
  [[nodiscard]] constexpr KeyTile key_tile(bool one_launch) const {
    return one_launch ? backward_key_tile(dk) : hopper::key_tile(dk, dv, softcap);
  }
};
/// Of true head dims, which `traits.cpp` reads too.
[[nodiscard]] constexpr GradTile grad_tile(long long dqk, long long dv, bool softcap) {
  if (dqk <= 64 && dv <= 64) return {64, 64, 128, softcap};
  if (dqk <= 128 && dv <= 128) return {128, 128, 96, softcap};
  if (dqk <= 192 && dv <= 128) return {192, 128, 64, softcap};
  return {256, 256, 48, softcap};
}

/// Blocks of keys of a call at most.
inline constexpr int max_blocks = 16;

}  // namespace usp::kernels::hopper
