// SPDX-License-Identifier: Apache-2.0
#include "backward.cuh"

namespace usp::kernels::hopper {

template <>
void launch_backward<64, 64>(const BackwardParams& p, DType io, cudaStream_t stream) {
  launch_backward_as<64, 64>(p, io, stream);
}

}  // namespace usp::kernels::hopper
