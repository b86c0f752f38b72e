// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

/// Vectors of USP_VECTOR_BYTES. All of it has internal linkage: the same source is compiled for several
/// instruction sets, and the linker must never take one for another.
namespace usp::kernels::cpu {
namespace {  // NOLINT(google-build-namespaces)

template <class T, std::size_t N>
struct VectorOf {
  // GCC drops the attribute of a dependent alias.
  typedef T type __attribute__((vector_size(N * sizeof(T))));  // NOLINT(modernize-use-using)
  // NOLINTNEXTLINE(modernize-use-using)
  typedef T loose __attribute__((vector_size(N * sizeof(T)), aligned(alignof(T)), may_alias));
};

template <class T>
struct Bits;
template <>
struct Bits<float> {
  using type = std::int32_t;
  static constexpr int mantissa = 23, bias = 127;
  static constexpr float round = 0x1.8p23F;
};
template <>
struct Bits<double> {
  using type = std::int64_t;
  static constexpr int mantissa = 52, bias = 1023;
  static constexpr double round = 0x1.8p52;
};

template <class T>
constexpr std::size_t lanes_of = USP_VECTOR_BYTES / sizeof(T);
template <class T>
using Vec = typename VectorOf<T, lanes_of<T>>::type;
template <class T>
using IntVec = typename VectorOf<typename Bits<T>::type, lanes_of<T>>::type;

#define USP_INLINE inline __attribute__((always_inline))

template <class V, class T>
USP_INLINE V load(const T* at) {
  return *reinterpret_cast<const typename VectorOf<T, sizeof(V) / sizeof(T)>::loose*>(at);
}
template <class V, class T>
USP_INLINE void store(T* at, const V& x) {
  *reinterpret_cast<typename VectorOf<T, sizeof(V) / sizeof(T)>::loose*>(at) = x;
}
template <class T>
USP_INLINE Vec<T> all(T x) {
  return x - Vec<T>{};
}

/// The greater lane; b where either is NaN.
template <class V>
USP_INLINE V greater(const V& a, const V& b) {
  return a > b ? a : b;
}
#if defined(__SSE2__) && USP_VECTOR_BYTES == 16
template <>
USP_INLINE Vec<float> greater(const Vec<float>& a, const Vec<float>& b) {
  return _mm_max_ps(a, b);
}
template <>
USP_INLINE Vec<double> greater(const Vec<double>& a, const Vec<double>& b) {
  return _mm_max_pd(a, b);
}
#elif defined(__AVX__) && USP_VECTOR_BYTES == 32
template <>
USP_INLINE Vec<float> greater(const Vec<float>& a, const Vec<float>& b) {
  return _mm256_max_ps(a, b);
}
template <>
USP_INLINE Vec<double> greater(const Vec<double>& a, const Vec<double>& b) {
  return _mm256_max_pd(a, b);
}
#elif defined(__AVX512F__) && USP_VECTOR_BYTES == 64
template <>
USP_INLINE Vec<float> greater(const Vec<float>& a, const Vec<float>& b) {
  return _mm512_max_ps(a, b);
}
template <>
USP_INLINE Vec<double> greater(const Vec<double>& a, const Vec<double>& b) {
  return _mm512_max_pd(a, b);
}
#endif

template <std::size_t Step, class V, std::size_t... I>
USP_INLINE void swap_corners(V& a, V& b, std::index_sequence<I...>) {
  constexpr std::size_t n = sizeof...(I);
  const V low = __builtin_shufflevector(a, b, static_cast<int>((I & Step) != 0 ? n + I - Step : I)...);
  b = __builtin_shufflevector(a, b, static_cast<int>((I & Step) != 0 ? n + I : I + Step)...);
  a = low;
}

/// Transposes N rows of N lanes in place, by corners of 1, 2, 4, ... lanes.
template <std::size_t N, std::size_t Step = 1, class V>
USP_INLINE void transpose(V (&rows)[N]) {
  if constexpr (Step < N) {
#pragma GCC unroll 16
    for (std::size_t i = 0; i < N; ++i)
      if ((i & Step) == 0) swap_corners<Step>(rows[i], rows[i + Step], std::make_index_sequence<N>());
    transpose<N, Step * 2>(rows);
  }
}

}  // namespace
}  // namespace usp::kernels::cpu
