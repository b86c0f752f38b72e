// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/base/error.hpp"
#include "usp/schedule/types.hpp"

#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <type_traits>

/// Element types in device code: how they enter and leave arithmetic, and how many travel in one access.
namespace usp::kernels::cuda {

using Bf16 = __nv_bfloat16;
using Fp16 = __half;

__device__ inline float widen(Bf16 x) {
  return __bfloat162float(x);
}
__device__ inline float widen(Fp16 x) {
  return __half2float(x);
}
__device__ inline float widen(float x) {
  return x;
}
__device__ inline double widen(double x) {
  return x;
}

/// To nearest even.
template <class T, class Wide>
__device__ T narrow(Wide x) {
  if constexpr (std::is_same_v<T, Bf16>)
    return __float2bfloat16_rn(static_cast<float>(x));
  else if constexpr (std::is_same_v<T, Fp16>)
    return __float2half_rn(static_cast<float>(x));
  else
    return static_cast<T>(x);
}

template <int bytes>
struct Raw;
template <>
struct Raw<2> {
  using type = unsigned short;
};
template <>
struct Raw<4> {
  using type = unsigned;
};
template <>
struct Raw<8> {
  using type = uint2;
};
template <>
struct Raw<16> {
  using type = uint4;
};

/// `count` elements that are loaded and stored by one instruction; on a boundary of their size.
template <class T, int count>
struct Pack {
  using Word = typename Raw<static_cast<int>(sizeof(T)) * count>::type;
  Word word;
  __device__ static Pack load(const T* from) { return {*reinterpret_cast<const Word*>(from)}; }
  /// What nothing reads again soon.
  __device__ static Pack stream(const T* from) { return {__ldcs(reinterpret_cast<const Word*>(from))}; }
  __device__ void store(T* to) const { *reinterpret_cast<Word*>(to) = word; }
  __device__ T at(int i) const {
    T x;
    memcpy(&x, reinterpret_cast<const char*>(&word) + i * sizeof(T), sizeof(T));
    return x;
  }
  __device__ void set(int i, T x) { memcpy(reinterpret_cast<char*>(&word) + i * sizeof(T), &x, sizeof(T)); }
};

/// Elements that fit 16 bytes of the wider of two types.
template <class A, class B>
inline constexpr int common_pack = 16 / static_cast<int>(sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B));

/// Calls f with a null pointer of the device type.
template <class F>
void with_type(DType type, F&& f) {
  switch (type) {
    case DType::bf16:
      return f(static_cast<Bf16*>(nullptr));
    case DType::fp16:
      return f(static_cast<Fp16*>(nullptr));
    case DType::fp32:
      return f(static_cast<float*>(nullptr));
    case DType::fp64:
      return f(static_cast<double*>(nullptr));
  }
  throw InternalError("unknown element type");
}

/// The same for the types that have an fp32 state.
template <class F>
void with_narrow_type(DType type, F&& f) {
  if (type == DType::bf16) return f(static_cast<Bf16*>(nullptr));
  if (type == DType::fp16) return f(static_cast<Fp16*>(nullptr));
  expects(type == DType::fp32, "fp64 has no fp32 state");
  return f(static_cast<float*>(nullptr));
}

}  // namespace usp::kernels::cuda
