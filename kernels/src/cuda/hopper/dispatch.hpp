// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "params.hpp"
#include "tile_rows.hpp"

/// From the calls of the contract to the launches that the kernels are built for.
namespace usp::kernels::hopper {

/// Padded head dims that a pair of true ones runs in, and the key rows of a tile.
struct ForwardTile {
  int dk = 0, dv = 0, keys = 0;
};

[[nodiscard]] ForwardTile forward_tile(i64 dqk, i64 dv, bool softcap);
void forward(const ForwardParams& p, const ForwardTile& tile, DType io, cudaStream_t stream);

/// All gradients, of a tile that adds_dq().
void backward(const BackwardParams& p, const GradTile& tile, DType io, cudaStream_t stream);
/// dK and dV without dQ.
void key_grad(const BackwardParams& p, const GradTile& tile, DType io, cudaStream_t stream);
/// dQ alone.
void query_grad(const QueryGradParams& p, const GradTile& tile, DType io, cudaStream_t stream);

}  // namespace usp::kernels::hopper
