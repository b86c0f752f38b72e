// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../tiles/rows.cuh"
#include "forward_shared.cuh"

/// What the query rows of a claim of the forward kernel begin with, and what they become.
namespace usp::kernels::hopper {

/// Two query rows of a thread: running maxima (log2 units), the thread's part of the sums, sum P V.
template <class S>
struct Rows {
  float top[2], sum[2];
  float o[S::Dv / 2];
};

/// The empty state of a head.
[[nodiscard]] __device__ __forceinline__ float empty_lse(const ForwardParams& p, int head) {
  return p.sink != nullptr ? static_cast<float>(p.sink[head]) : minus_infinity();
}

template <class S, int h>
__device__ __forceinline__ void begin_row(Rows<S>& rows, const ForwardParams& p, const Claim& claim,
                                          const QueryRow& row) {
  const int lane = lane_of_warp();
  const bool inside = row.token < claim.row_end, carried = !p.overwrite && inside;
  float lse = minus_infinity();
  if (p.overwrite)
    lse = empty_lse(p, row.head);
  else if (carried)
    lse = *row_of<float>(p.lse, claim.batch, row.head, row.token);
  const bool holds = lse != minus_infinity();
  // Sums of a warp are rescaled together: other tiles' rows, which may hold anything, never ask for it.
  rows.top[h] = inside ? lse * log2_e : -minus_infinity();
  rows.sum[h] = holds && (lane & 3) == 0 ? 1.f : 0.f;
#pragma unroll
  for (int n = 0; n < S::Dv / 8; ++n) rows.o[4 * n + 2 * h] = rows.o[4 * n + 2 * h + 1] = 0.f;
  if (!carried || !holds) return;
  const float* from = row_of<float>(p.o, claim.batch, row.head, row.token);
#pragma unroll
  for (int n = 0; n < S::Dv / 8; ++n) {
    const float2 x = load_pair(from, n * 8 + 2 * (lane & 3), p.dv, p.o.pairs);
    rows.o[4 * n + 2 * h] = x.x, rows.o[4 * n + 2 * h + 1] = x.y;
  }
}

template <class S>
__device__ __forceinline__ void begin_rows(Rows<S>& rows, const ForwardParams& p, const Claim& claim) {
  begin_row<S, 0>(rows, p, claim, query_row(p, claim, row_of_tile()));
  begin_row<S, 1>(rows, p, claim, query_row(p, claim, row_of_tile() + 8));
}

/// What is written of a row: its sums times `factor`.
struct RowResult {
  float factor;
  bool writes;
};
/// Writes what the logarithm of a row's sum has become; a carried row that saw nothing is left alone.
template <class S, int h>
[[nodiscard]] __device__ __forceinline__ RowResult end_row(const Rows<S>& rows, const ForwardParams& p,
                                                           const Claim& claim, const QueryRow& row) {
  const bool inside = row.token < claim.row_end;
  float* lse = row_of<float>(p.lse, claim.batch, row.head, inside ? row.token : claim.row);
  const float before = p.overwrite ? empty_lse(p, row.head) : *lse;
  // The four lanes of a row have all read before one of them writes.
  float sum = rows.sum[h];
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  const float top = rows.top[h];
  // Only a row that saw nothing still has the maximum and the sum that it began with.
  const bool untouched = before * log2_e == top && sum == (before == minus_infinity() ? 0.f : 1.f);
  const bool writes = inside && (!untouched || p.overwrite);
  if (writes && (lane_of_warp() & 3) == 0) *lse = untouched ? before : (top + log2f(sum)) * ln_2;
  return {sum > 0 ? 1.f / sum : 0.f, writes};
}

/// Writes the sums of a row from where they are.
template <class S, int h>
__device__ __forceinline__ void write_row(const Rows<S>& rows, const ForwardParams& p, const Claim& claim,
                                          const QueryRow& row, const RowResult& result) {
  using T = typename S::T;
  const int first = 2 * (lane_of_warp() & 3), token = result.writes ? row.token : claim.row;
  const float factor = result.factor;
  if (p.o.type == DType::fp32) {
    if (!result.writes) return;
    float* const to = row_of<float>(p.o, claim.batch, row.head, token);
#pragma unroll
    for (int n = 0; n < S::Dv / 8; ++n)
      store_pair(to, n * 8 + first, p.dv, p.o.pairs,
                 {rows.o[4 * n + 2 * h] * factor, rows.o[4 * n + 2 * h + 1] * factor});
    return;
  }
  auto* const to = row_of<typename T::type>(p.o, claim.batch, row.head, token);
  // More sums leave no registers for whole pieces.
  if (S::Dv <= 128 && p.o_pieces) return store_row<T, S::Dv, h>(to, rows.o, factor, p.dv, result.writes);
  if (!result.writes) return;
#pragma unroll
  for (int n = 0; n < S::Dv / 8; ++n)
    store_rounded<T>(to, n * 8 + first, p.dv, p.o.pairs,
                     {rows.o[4 * n + 2 * h] * factor, rows.o[4 * n + 2 * h + 1] * factor});
}

/// Writes the rows of a claim, which is over then.
template <class S>
__device__ __forceinline__ void end_claim(const Rows<S>& rows, const ForwardParams& p,
                                          const ForwardShared<S>& shared, Places<S>& at) {
  const Claim& claim = shared.claim(at.claims.place);
  const QueryRow row[] = {query_row(p, claim, row_of_tile()), query_row(p, claim, row_of_tile() + 8)};
  const RowResult results[] = {end_row<S, 0>(rows, p, claim, row[0]), end_row<S, 1>(rows, p, claim, row[1])};
  write_row<S, 0>(rows, p, claim, row[0], results[0]);
  write_row<S, 1>(rows, p, claim, row[1], results[1]);
  arrive_of_warp(shared.claim_empty(at.claims.place));
  at.claims.advance();
}

}  // namespace usp::kernels::hopper
