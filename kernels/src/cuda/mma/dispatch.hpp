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

}  // namespace usp::kernels::mma
