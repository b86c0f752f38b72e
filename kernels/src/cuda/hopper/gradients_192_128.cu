// SPDX-License-Identifier: Apache-2.0
#include "key_grad_tall.cuh"
#include "key_grad_wide.cuh"
#include "query_grad.cuh"

namespace usp::kernels::hopper {

template <>
void launch_key_grad<192, 128>(const BackwardParams& p, DType io, cudaStream_t stream) {
  launch_variant(p, io, [&](auto type, auto softcap) {
    using T = decltype(type);
    if constexpr (decltype(softcap)::value)
      launch_wide_key_grad_of<WideKeyGradShape<T, 192, 128, true>>(p, stream);
    else
      launch_tall_key_grad_of<TallKeyGradShape<T, 192, 128>>(p, stream);
  });
}
template <>
void launch_query_grad<192, 128>(const QueryGradParams& p, DType io, cudaStream_t stream) {
  launch_query_grad_as<192, 128, 64, 3, 1>(p, io, stream);
}

}  // namespace usp::kernels::hopper
