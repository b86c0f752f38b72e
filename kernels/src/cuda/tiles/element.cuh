// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

/// Elements of 16 bits, and the arithmetic of the softmax.
namespace usp::kernels::tiles {

inline constexpr float log2_e = 1.4426950408889634f;
inline constexpr float ln_2 = 0.6931471805599453f;

__device__ __forceinline__ float minus_infinity() {
  return __int_as_float(static_cast<int>(0xff800000u));
}

struct Bf16 {
  using type = __nv_bfloat16;
  static __device__ type round(float x) { return __float2bfloat16_rn(x); }
};
struct Fp16 {
  using type = __half;
  static __device__ type round(float x) { return __float2half_rn(x); }
};

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

/// Two floats, rounded, the first in the low half.
template <class T>
__device__ __forceinline__ std::uint32_t pack(float low, float high);
template <>
__device__ __forceinline__ std::uint32_t pack<Bf16>(float low, float high) {
  std::uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
template <>
__device__ __forceinline__ std::uint32_t pack<Fp16>(float low, float high) {
  std::uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace usp::kernels::tiles
