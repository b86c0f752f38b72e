// SPDX-License-Identifier: Apache-2.0
#include "forward.cuh"

namespace usp::kernels::hopper {

template <>
void launch_forward<128, 128>(const ForwardParams& p, DType io, cudaStream_t stream) {
  launch_forward_as<128, 128, 128, 2, true>(p, io, stream);
}

}  // namespace usp::kernels::hopper
