// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../tile_ops.hpp"
#include "products.hpp"
#include "vector_math.hpp"

namespace usp::kernels::cpu {
namespace {

/// Calls f(vector of a row, key, offset within the row) for all vectors of a part.
template <class T, class F>
USP_INLINE void each_vector(const PanelPart<T>& part, const F& f) {
  constexpr i64 lanes = lanes_of<T>;
  const i64 width = part.vectors * lanes;
  for (i64 key = part.keys.begin; key < part.keys.end; ++key)
    for (i64 column = 0; column < width; column += lanes) f(key * width + column, key, column);
}

template <class T>
void mask(const PanelPart<T>& part, const T* low, const T* high) {
  const Vec<T> hidden = all(-static_cast<T>(__builtin_inf()));
  each_vector(part, [&](i64 at, i64 key, i64 column) {
    const Vec<T> k = all(static_cast<T>(key));
    const auto seen = (load<Vec<T>>(low + column) <= k) & (k < load<Vec<T>>(high + column));
    store(part.tile + at, select<Vec<T>>(seen, load<Vec<T>>(part.tile + at), hidden));
  });
}

template <class T>
void softcap(const PanelPart<T>& part, T cap, T* slope) {
  each_vector(part, [&](i64 at, i64, i64) {
    const Vec<T> t = tanh_of<T>(load<Vec<T>>(part.tile + at));
    store(part.tile + at, t * cap);
    if (slope != nullptr) store(slope + at, T{1} - t * t);
  });
}

template <class T>
void alibi(const PanelPart<T>& part, T slope, const Distances<T>& d) {
  Vec<T> lane{};
  for (std::size_t i = 0; i < lanes_of<T>; ++i) lane[i] = static_cast<T>(i);
  each_vector(part, [&](i64 at, i64 key, i64 column) {
    const Vec<T> x = (lane + static_cast<T>(column)) * d.q_step + (d.origin - static_cast<T>(key) * d.k_step);
    store(part.tile + at, load<Vec<T>>(part.tile + at) - slope * magnitude(x));
  });
}

/// Philox4x32-10 of a row of pairs, as dropout_bits: the counter of lane i is (q_pos[i], k_pos / 4, head,
/// batch).
template <std::size_t N>
USP_INLINE void philox(std::uint64_t seed, std::uint32_t (&c)[4][N]) {
  auto k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (std::size_t i = 0; i < N; ++i) {
      const std::uint64_t a = std::uint64_t{0xD2511F53U} * c[0][i], b = std::uint64_t{0xCD9E8D57U} * c[2][i];
      c[0][i] = static_cast<std::uint32_t>(b >> 32) ^ c[1][i] ^ k0;
      c[1][i] = static_cast<std::uint32_t>(b);
      c[2][i] = static_cast<std::uint32_t>(a >> 32) ^ c[3][i] ^ k1;
      c[3][i] = static_cast<std::uint32_t>(a);
    }
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
}

template <class T>
void keep(const PanelPart<T>& part, const PairNames& names, T kept_value) {
  constexpr i64 lanes = lanes_of<T>;
  const i64 width = part.vectors * lanes;
  for (i64 column = 0; column < width; column += lanes) {
    std::uint32_t c[4][lanes_of<T>];
    i64 drawn = -1;
    for (i64 key = part.keys.begin; key < part.keys.end; ++key) {
      const i64 y = names.k_pos + key * names.k_step;
      if ((y >> 2) != drawn || key == part.keys.begin) {
        drawn = y >> 2;
        for (i64 i = 0; i < lanes; ++i) {
          c[0][i] = static_cast<std::uint32_t>(names.q_pos + (column + i) * names.q_step);
          c[1][i] = static_cast<std::uint32_t>(drawn);
          c[2][i] = static_cast<std::uint32_t>(names.head);
          c[3][i] = static_cast<std::uint32_t>(names.batch);
        }
        philox(names.seed, c);
      }
      T* to = part.tile + key * width + column;
      for (i64 i = 0; i < lanes; ++i) to[i] = c[y & 3][i] < names.threshold ? T{0} : kept_value;
    }
  }
}

template <class T>
void multiply(const PanelPart<T>& part, const T* factors) {
  each_vector(part, [&](i64 at, i64, i64) {
    store(part.tile + at, load<Vec<T>>(part.tile + at) * load<Vec<T>>(factors + at));
  });
}

template <class T, int N>
bool softmax_of(const PanelPart<T>& part, T* top, T* sum, T* correction) {
  constexpr i64 lanes = lanes_of<T>, width = N * lanes;
  T* const begin = part.tile + part.keys.begin * width;
  T* const end = part.tile + part.keys.end * width;
  constexpr auto count = static_cast<std::size_t>(N);
  Vec<T> most[count], base[count], total[count];
  const Vec<T> nothing = all(-static_cast<T>(__builtin_inf()));
  bool rose = false;
#pragma GCC unroll 4
  for (int v = 0; v < N; ++v) most[v] = load<Vec<T>>(top + v * lanes);
  for (const T* s = begin; s != end; s += width)
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) most[v] = greater(most[v], load<Vec<T>>(s + v * lanes));
#pragma GCC unroll 4
  for (int v = 0; v < N; ++v) {
    const auto old = load<Vec<T>>(top + v * lanes);
    // A column that has seen nothing yet keeps -infinity: shift by 0 there, not by an infinity.
    base[v] = select<Vec<T>>(most[v] == nothing, Vec<T>{}, most[v]);
    store(correction + v * lanes, exp2_of<T>(old - base[v]));
    store(top + v * lanes, most[v]);
    total[v] = Vec<T>{};
    for (i64 i = 0; i < lanes; ++i) rose = rose || most[v][i] != old[i];
  }
  for (T* s = begin; s != end; s += width)
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) {
      const Vec<T> p = exp2_of<T>(load<Vec<T>>(s + v * lanes) - base[v]);
      store(s + v * lanes, p);
      total[v] += p;
    }
#pragma GCC unroll 4
  for (int v = 0; v < N; ++v) {
    const Vec<T> carried = load<Vec<T>>(sum + v * lanes) * load<Vec<T>>(correction + v * lanes);
    store(sum + v * lanes, carried + total[v]);
  }
  return rose;
}

template <class T>
bool softmax(const PanelPart<T>& part, T* top, T* sum, T* correction) {
  bool rose = false;
  with_vectors(part.vectors, [&](auto n) { rose = softmax_of<T, n()>(part, top, sum, correction); });
  return rose;
}

template <class T>
void scale_columns(T* panel, i64 depth, int vectors, const T* factors) {
  each_vector(PanelPart<T>{panel, {0, depth}, vectors}, [&](i64 at, i64, i64 column) {
    store(panel + at, load<Vec<T>>(panel + at) * load<Vec<T>>(factors + column));
  });
}

template <class T, int N>
void softmax_grad_of(const PanelPart<T>& part, T* dp, const T* lse, const T* delta) {
  constexpr i64 lanes = lanes_of<T>, width = N * lanes;
  Vec<T> shift[static_cast<std::size_t>(N)], mean[static_cast<std::size_t>(N)];
#pragma GCC unroll 4
  for (int v = 0; v < N; ++v) {
    shift[v] = load<Vec<T>>(lse + v * lanes);
    mean[v] = load<Vec<T>>(delta + v * lanes);
  }
  for (i64 at = part.keys.begin * width; at < part.keys.end * width; at += width)
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) {
      const Vec<T> p = exp2_of<T>(load<Vec<T>>(part.tile + at + v * lanes) - shift[v]);
      store(part.tile + at + v * lanes, p);
      store(dp + at + v * lanes, p * (load<Vec<T>>(dp + at + v * lanes) - mean[v]));
    }
}

template <class T>
void softmax_grad(const PanelPart<T>& part, T* dp, const T* lse, const T* delta) {
  with_vectors(part.vectors, [&](auto n) { softmax_grad_of<T, n()>(part, dp, lse, delta); });
}

template <class T>
void softmax_grad_terms(const PanelPart<T>& part, T* dp, const T* lse, const T* delta,
                        typename TileOps<T>::GradTerms terms) {
  each_vector(part, [&](i64 at, i64, i64 column) {
    Vec<T> p = exp2_of<T>(load<Vec<T>>(part.tile + at) - load<Vec<T>>(lse + column));
    auto d = load<Vec<T>>(dp + at);
    if (terms.keep != nullptr) d *= load<Vec<T>>(terms.keep + at);
    d = p * (d - load<Vec<T>>(delta + column));
    if (terms.slope != nullptr) d *= load<Vec<T>>(terms.slope + at);
    if (terms.keep != nullptr) p *= load<Vec<T>>(terms.keep + at);
    store(part.tile + at, p);
    store(dp + at, d);
  });
}

template <class T>
void blend(T* to, T a, const T* from, T b, i64 count) {
  for (i64 i = 0; i < count; ++i) to[i] = a * to[i] + b * from[i];
}

template <class T>
double dot(const T* a, const T* b, i64 count) {
  double sums[8] = {};
  i64 i = 0;
  for (; i + 8 <= count; i += 8)
    for (int n = 0; n < 8; ++n) sums[n] += static_cast<double>(a[i + n]) * static_cast<double>(b[i + n]);
  for (; i < count; ++i) sums[0] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

}  // namespace
}  // namespace usp::kernels::cpu
