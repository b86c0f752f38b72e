// SPDX-License-Identifier: Apache-2.0
#include "forward.cuh"

namespace usp::kernels::hopper {

template <>
void launch_forward<192, 128>(const ForwardParams& p, DType io, cudaStream_t stream) {
  launch_forward_as<192, 128, 128, 1, true>(p, io, stream);
}

}  // namespace usp::kernels::hopper
