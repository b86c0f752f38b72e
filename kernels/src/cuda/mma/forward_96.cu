// SPDX-License-Identifier: Apache-2.0
#include "forward.cuh"

namespace usp::kernels::mma {
template void launch_forward<96, 96, false>(ForwardParams p, DType io, cudaStream_t stream);
}  // namespace usp::kernels::mma
