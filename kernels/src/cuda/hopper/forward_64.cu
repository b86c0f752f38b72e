// SPDX-License-Identifier: Apache-2.0
#include "forward.cuh"

namespace usp::kernels::hopper {

template <>
void launch_forward<64, 64>(const ForwardParams& p, DType io, cudaStream_t stream) {
  launch_forward_as<64, 64, 192, 2, true, 128>(p, io, stream);
}

}  // namespace usp::kernels::hopper
