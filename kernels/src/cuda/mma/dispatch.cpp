// SPDX-License-Identifier: Apache-2.0
#include "dispatch.hpp"

#include "usp/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

namespace usp::kernels::mma {
namespace {

[[nodiscard]] int padded(i64 width, std::initializer_list<int> dims) {
  for (const int d : dims)
    if (width <= d) return d;
  throw EnvironmentError(fmt::format(
      "a head dim of {} is more than the mma GPU kernel's 256; use a model with smaller heads", width));
}

/// Calls launch.operator()<dk, dv, terms>() for the shape that a kernel is built in.
template <class Launch>
void with_dims(PaddedDims d, const Launch& launch) {
  if (d.terms)
    return d.dk == 64    ? launch.template operator()<64, 64, true>()
           : d.dk == 128 ? launch.template operator()<128, 128, true>()
                         : launch.template operator()<256, 256, true>();
  switch (d.dk) {
    case 64:
      return launch.template operator()<64, 64, false>();
    case 96:
      return launch.template operator()<96, 96, false>();
    case 128:
      return launch.template operator()<128, 128, false>();
    case 192:
      return d.dv == 128 ? launch.template operator()<192, 128, false>()
                         : launch.template operator()<192, 192, false>();
    default:
      return launch.template operator()<256, 256, false>();
  }
}

}  // namespace

PaddedDims padded_dims(i64 dqk, i64 dv, bool terms) {
  if (!terms && dqk > 128 && dqk <= 192 && dv <= 128) return {192, 128, false};
  const i64 width = std::max(dqk, dv);
  const int d = terms ? padded(width, {64, 128, 256}) : padded(width, {64, 96, 128, 192, 256});
  return {d, d, terms};
}

bool needs_terms(const ScoreTerms& t) {
  return t.softcap != 0 || t.alibi_slopes != nullptr || t.dropout != 0 || t.blocks != nullptr ||
         !(t.scale > 0);
}

Terms terms_of(const ScoreTerms& t) {
  Terms out;
  out.scale = static_cast<float>(t.scale);
  out.scale_log2 = static_cast<float>(t.scale * 1.4426950408889634);
  out.softcap = static_cast<float>(t.softcap);
  out.slopes = t.alibi_slopes;
  out.dropout = t.dropout != 0;
  out.threshold = dropout_threshold(t.dropout);
  out.keep = static_cast<float>(1 / (1 - t.dropout));
  out.seed = t.dropout_seed;
  if (t.blocks == nullptr) return out;
  out.block_q = t.blocks->block_q, out.block_k = t.blocks->block_k;
  out.block_rows = t.blocks->rows, out.block_columns = t.blocks->columns;
  out.admitted = t.blocks->admitted;
  return out;
}

void forward(const ForwardParams& p, PaddedDims d, DType io, cudaStream_t stream) {
  with_dims(d, [&]<int dk, int dv, bool terms>() { launch_forward<dk, dv, terms>(p, io, stream); });
}

void backward(const BackwardParams& p, PaddedDims d, DType io, cudaStream_t stream) {
  with_dims(d, [&]<int dk, int dv, bool terms>() { launch_backward<dk, dv, terms>(p, io, stream); });
}

void query_grad(const QueryGradParams& p, PaddedDims d, DType io, cudaStream_t stream) {
  if (d.dk == 64) return launch_query_grad<64>(p, io, stream);
  if (d.dk == 128) return launch_query_grad<128>(p, io, stream);
  return launch_query_grad<256>(p, io, stream);
}

}  // namespace usp::kernels::mma
