// SPDX-License-Identifier: Apache-2.0
#include "forward.cuh"

namespace usp::kernels::hopper {

template <>
void launch_forward<256, 256>(const ForwardParams& p, DType io, cudaStream_t stream) {
  launch_forward_as<256, 256, 80, 1, false, 64>(p, io, stream);
}

}  // namespace usp::kernels::hopper
