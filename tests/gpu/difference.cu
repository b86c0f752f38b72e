// SPDX-License-Identifier: Apache-2.0
#include "difference.hpp"

#include "usp/device/check.cuda.hpp"

#include <cuda_runtime_api.h>
#include <limits>

namespace usp::test {
namespace {

__global__ void compare(Difference* to, const std::uint32_t* a, const std::uint32_t* b, i64 words) {
  std::uint32_t differing = 0;
  float greatest = 0;
  for (i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; i < words;
       i += static_cast<i64>(gridDim.x) * blockDim.x) {
    if (a[i] == b[i]) continue;
    ++differing;
    const float apart = fabsf(__uint_as_float(a[i]) - __uint_as_float(b[i]));
    greatest = isnan(apart) ? std::numeric_limits<float>::infinity() : fmaxf(greatest, apart);
  }
  if (differing == 0) return;
  atomicAdd(&to->words, differing);
  // Floats that are not negative have the order of their bits.
  atomicMax(reinterpret_cast<int*>(&to->greatest), __float_as_int(greatest));
}

}  // namespace

void add_difference(Difference* to, const std::byte* a, const std::byte* b, i64 bytes,
                    device::StreamHandle stream) {
  constexpr int blocks = 264, threads = 256;
  compare<<<blocks, threads, 0, stream>>>(to, reinterpret_cast<const std::uint32_t*>(a),
                                          reinterpret_cast<const std::uint32_t*>(b), bytes / 4);
  device::check_launch("compare");
}

}  // namespace usp::test
