// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "params.hpp"

#include "usp/kernels/attention_args.hpp"

#include <cstdint>

/// From the calls of the contract to the launches that the kernels are built for.
namespace usp::kernels::mma {

/// Padded head dims that a pair of true ones runs in.
struct PaddedDims {
  int dk = 0, dv = 0;
  bool terms = false;
};

/// Throws EnvironmentError where a head dim is too large.
[[nodiscard]] PaddedDims padded_dims(i64 dqk, i64 dv, bool terms);
/// More than a band of positions; a scale that turns the order of scores round counts too.
[[nodiscard]] bool needs_terms(const ScoreTerms& terms);
[[nodiscard]] Terms terms_of(const ScoreTerms& terms);

void forward(const ForwardParams& p, PaddedDims dims, DType io, cudaStream_t stream);
void backward(const BackwardParams& p, PaddedDims dims, DType io, cudaStream_t stream);
void query_grad(const QueryGradParams& p, PaddedDims dims, DType io, cudaStream_t stream);

/// Whether every row starts on a boundary of `bytes`, `elements` of its type.
template <class V>
[[nodiscard]] bool divides(const V& view, std::uintptr_t bytes, i64 elements) {
  return reinterpret_cast<std::uintptr_t>(view.data) % bytes == 0 && view.batch_stride % elements == 0 &&
         view.row_stride % elements == 0 && view.head_stride % elements == 0;
}

template <class V>
[[nodiscard]] Strided strided(const V& view) {
  Strided s;
  s.type = view.type;
  s.batch = view.batch_stride, s.row = view.row_stride, s.head = view.head_stride;
  s.pairs = divides(view, static_cast<std::uintptr_t>(2 * bytes_of(view.type)), 2);
  // The heads of a view start anywhere, the kernels count them from 0.
  const auto at = reinterpret_cast<std::uintptr_t>(view.data) -
                  static_cast<std::uintptr_t>(view.heads.begin * view.head_stride * bytes_of(view.type));
  s.data = reinterpret_cast<char*>(at);
  return s;
}

}  // namespace usp::kernels::mma
