// SPDX-License-Identifier: Apache-2.0
#include "forward.cuh"

namespace usp::kernels::mma {
template void launch_forward<64, 64, false>(ForwardParams p, DType io, cudaStream_t stream);
template void launch_forward<64, 64, true>(ForwardParams p, DType io, cudaStream_t stream);
}  // namespace usp::kernels::mma
