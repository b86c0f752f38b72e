// SPDX-License-Identifier: Apache-2.0
#include "query_grad.cuh"

namespace usp::kernels::mma {
template void launch_query_grad<128>(const QueryGradParams& p, DType io, cudaStream_t stream);
}  // namespace usp::kernels::mma
