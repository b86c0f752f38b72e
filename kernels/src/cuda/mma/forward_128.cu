// SPDX-License-Identifier: Apache-2.0
#include "forward.cuh"

namespace usp::kernels::mma {
template void launch_forward<128, 128, false>(ForwardParams p, DType io, cudaStream_t stream);
template void launch_forward<128, 128, true>(ForwardParams p, DType io, cudaStream_t stream);
}  // namespace usp::kernels::mma
