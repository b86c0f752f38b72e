// SPDX-License-Identifier: Apache-2.0
#include "forward.cuh"

namespace usp::mma {
template void launch_forward<192, 128, false>(ForwardParams p, DType io, cudaStream_t stream);
}  // namespace usp::mma
