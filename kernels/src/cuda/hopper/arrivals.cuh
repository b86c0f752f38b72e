// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../gates/gate_wait.cuh"
#include "claims.cuh"
#include "tile.cuh"

/// Blocks of keys that arrive while a launch runs. The thread that issues the tensor copies of a block of
/// threads waits for them; all others wait for its copies, as ever, and read no keys by other means.
namespace usp::kernels::hopper {

/// What that thread has yet to wait for.
class Arrivals {
 public:
  __device__ __forceinline__ explicit Arrivals(const CommonParams& p) : awaited_(p.awaited) {}

  /// Whether keys and values of a block may be read, once its gate is open. After a wait that was given up
  /// they may not: the claim goes on with whatever shared memory holds, so that barriers count as ever, and
  /// no block of threads claims any more.
  [[nodiscard]] __device__ __forceinline__ bool await(const CommonParams& p, int block) {
    const std::uint32_t bit = 1u << block;
    if ((awaited_ & bit) == 0) return true;
    if ((awaited_ & given_up) != 0) return false;
    if (gates::await(p.gates[block], p.watch, block)) {
      awaited_ &= ~bit;
      return true;
    }
    awaited_ |= given_up;
    give_up_claims(p);
    return false;
  }

 private:
  static constexpr std::uint32_t given_up = 1u << max_blocks;
  std::uint32_t awaited_;  ///< a bit of each block, and one of a wait that was given up; registers are scarce
};

/// Loads rows of 16-bit elements of a block that has arrived; else the barrier is passed without.
template <int columns, int rows>
__device__ __forceinline__ void load_if(bool arrived, std::uint32_t to, const CUtensorMap& map, BoxPlace at,
                                        Barrier full) {
  if (!arrived) {
    full.arrive();
    return;
  }
  full.arrive_with_bytes(rows * columns * 2);
  load_rows<columns, rows>(to, map, at, full);
}

}  // namespace usp::kernels::hopper
