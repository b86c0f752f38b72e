// SPDX-License-Identifier: Apache-2.0
#include "key_grad.cuh"
#include "query_grad.cuh"

namespace usp::kernels::hopper {

template <>
void launch_key_grad<128, 128>(const BackwardParams& p, DType io, cudaStream_t stream) {
  launch_key_grad_as<128, 128>(p, io, stream);
}
template <>
void launch_query_grad<128, 128>(const QueryGradParams& p, DType io, cudaStream_t stream) {
  launch_query_grad_as<128, 128, 96, 3, 1>(p, io, stream);
}

}  // namespace usp::kernels::hopper
