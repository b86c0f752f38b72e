// SPDX-License-Identifier: Apache-2.0
#include "backward_wide.cuh"

namespace usp::kernels::hopper {

template <>
void launch_backward<192, 128>(const BackwardParams& p, DType io, cudaStream_t stream) {
  launch_wide_backward_as<192, 128, true>(p, io, stream);
}

}  // namespace usp::kernels::hopper
