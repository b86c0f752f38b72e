// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "simd.hpp"

namespace usp::kernels::cpu {
namespace {

template <class V>
USP_INLINE V select(const decltype(V{} < V{}) & mask, const V& yes, const V& no) {
  return mask ? yes : no;
}

/// x = n + f with n whole and |f| <= 1/2; power = 2^n (0 for x <= -bias), rest = 2^f - 1, precise near 0.
/// A NaN stays one.
template <class T>
struct SplitExp2 {
  Vec<T> power, rest;
};

USP_INLINE Vec<float> exp2_minus_1(const Vec<float>& f) {
  // Minimax of 2^f - 1 on [-1/2, 1/2] without a constant term: relative error of 2^f 2.6e-9.
  Vec<float> q = all(1.559467816791974e-4F);
  q = q * f + 1.3406643902389268e-3F;
  q = q * f + 9.617692972965197e-3F;
  q = q * f + 5.550310551013717e-2F;
  q = q * f + 2.4022652782887974e-1F;
  q = q * f + 6.931472149680279e-1F;
  return q * f;
}
USP_INLINE Vec<double> exp2_minus_1(const Vec<double>& f) {
  // Taylor, ln(2)^k / k!: the first term left out is below 1e-17.
  constexpr double c[] = {1.3691488853904124e-12, 2.5678435993488196e-11, 4.44553827187081e-10,
                          7.054911620801121e-09,  1.0178086009239696e-07, 1.3215486790144305e-06,
                          1.5252733804059838e-05, 1.5403530393381606e-4,  1.3333558146428441e-3,
                          9.618129107628477e-3,   5.5504108664821576e-2,  2.402265069591007e-1,
                          6.931471805599453e-1};
  Vec<double> q = all(c[0]);
#pragma GCC unroll 16
  for (int i = 1; i < 13; ++i) q = q * f + c[i];
  return q * f;
}

template <class T>
USP_INLINE SplitExp2<T> split_exp2(const Vec<T>& argument) {
  using B = Bits<T>;
  const Vec<T> x = greater(all(static_cast<T>(-B::bias)), argument);
  const Vec<T> rounded = x + B::round;
  const IntVec<T> exponent = (reinterpret_cast<IntVec<T>>(rounded) + B::bias) << B::mantissa;
  return {reinterpret_cast<Vec<T>>(exponent), exp2_minus_1(x - (rounded - B::round))};
}

/// 2^x for x < bias + 1/2; 0 below the normal numbers.
template <class T>
USP_INLINE Vec<T> exp2_of(const Vec<T>& x) {
  const SplitExp2<T> s = split_exp2<T>(x);
  return s.power + s.power * s.rest;
}

/// tanh with a relative error of a few roundings everywhere: (e - 1) / (e + 1) of e = exp(2x), e - 1 precise.
template <class T>
USP_INLINE Vec<T> tanh_of(const Vec<T>& x) {
  const Vec<T> y = x * static_cast<T>(2.885390081777926815);  // 2 / ln 2
  const Vec<T> bounded = select(y > static_cast<T>(80), all(static_cast<T>(80)), y);
  const SplitExp2<T> s = split_exp2<T>(bounded);
  const Vec<T> e_minus_1 = s.power * s.rest + (s.power - T{1});
  return e_minus_1 / (e_minus_1 + T{2});
}

template <class V>
USP_INLINE V magnitude(const V& x) {
  return greater(x, -x);
}

}  // namespace
}  // namespace usp::kernels::cpu
