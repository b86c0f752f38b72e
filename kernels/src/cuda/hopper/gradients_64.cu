// SPDX-License-Identifier: Apache-2.0
#include "key_grad.cuh"
#include "query_grad.cuh"

namespace usp::kernels::hopper {

template <>
void launch_key_grad<64, 64>(const BackwardParams& p, DType io, cudaStream_t stream) {
  launch_key_grad_as<64, 64>(p, io, stream);
}
template <>
void launch_query_grad<64, 64>(const QueryGradParams& p, DType io, cudaStream_t stream) {
  launch_query_grad_as<64, 64, 128, 4, 2>(p, io, stream);
}

}  // namespace usp::kernels::hopper
