// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace usp::kernels::hopper {

/// Query rows of a tile of the forward kernel: 64 for each of two warpgroups.
inline constexpr int query_rows = 128;
/// Key rows of a tile of the backward kernel, 64 for each of two warpgroups, and query rows of a step.
inline constexpr int key_rows = 128, step_rows = 64;

/// Blocks of keys of a call at most.
inline constexpr int max_blocks = 16;

}  // namespace usp::kernels::hopper
