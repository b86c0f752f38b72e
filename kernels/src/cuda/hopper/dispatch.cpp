// SPDX-License-Identifier: Apache-2.0
#include "dispatch.hpp"

namespace usp::kernels::hopper {

ForwardTile forward_tile(i64 dqk, i64 dv, bool softcap) {
  if (dqk <= 64 && dv <= 64) return {64, 64, softcap ? 128 : 192};
  if (dqk <= 128 && dv <= 128) return {128, 128, 128};
  if (dqk <= 192 && dv <= 128) return {192, 128, 128};
  return {256, 256, softcap ? 64 : 80};
}

void forward(const ForwardParams& p, const ForwardTile& tile, DType io, cudaStream_t stream) {
  if (tile.dk == 64) return launch_forward<64, 64>(p, io, stream);
  if (tile.dk == 128) return launch_forward<128, 128>(p, io, stream);
  if (tile.dk == 192) return launch_forward<192, 128>(p, io, stream);
  launch_forward<256, 256>(p, io, stream);
}

void backward(const BackwardParams& p, const GradTile& tile, DType io, cudaStream_t stream) {
  if (tile.dk == 64) return launch_backward<64, 64>(p, io, stream);
  launch_backward<128, 128>(p, io, stream);
}

void key_grad(const BackwardParams& p, const GradTile& tile, DType io, cudaStream_t stream) {
  if (tile.dk == 64) return launch_key_grad<64, 64>(p, io, stream);
  if (tile.dk == 128) return launch_key_grad<128, 128>(p, io, stream);
  if (tile.dk == 192) return launch_key_grad<192, 128>(p, io, stream);
  launch_key_grad<256, 256>(p, io, stream);
}

void query_grad(const QueryGradParams& p, const GradTile& tile, DType io, cudaStream_t stream) {
  if (tile.dk == 64) return launch_query_grad<64, 64>(p, io, stream);
  if (tile.dk == 128) return launch_query_grad<128, 128>(p, io, stream);
  if (tile.dk == 192) return launch_query_grad<192, 128>(p, io, stream);
  launch_query_grad<256, 256>(p, io, stream);
}

}  // namespace usp::kernels::hopper
