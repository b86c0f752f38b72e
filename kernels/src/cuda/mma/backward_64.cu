// SPDX-License-Identifier: Apache-2.0
#include "backward.cuh"

namespace usp::kernels::mma {
template void launch_backward<64, 64, false>(BackwardParams p, DType io, cudaStream_t stream);
template void launch_backward<64, 64, true>(BackwardParams p, DType io, cudaStream_t stream);
}  // namespace usp::kernels::mma
