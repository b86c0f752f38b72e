// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../tiles/rows.cuh"
#include "arrivals.cuh"
#include "forward_shared.cuh"
#include "query_tiles.cuh"

/// Attention forward: a tile of 128 query rows stays, keys and values stream by. A row is a token of a head;
/// the heads of a bundle share the tile. One warpgroup moves data and prepares masks, two compute 64 rows
/// each and alternate, so that the softmax of one runs beside the products of the other.
namespace usp::kernels::hopper {

/// Claims work and issues all tensor copies; one thread.
template <class S>
__device__ __forceinline__ void load_all(const ForwardParams& p, const ForwardShared<S>& shared) {
  Ring<S::claim_slots> claims;
  Ring<S::q_buffers> q;
  Ring<S::stages> kv;
  Arrivals arrivals(p);
  for (;;) {
    // Read where it is published, which no other thread writes: registers are scarce.
    const Claim& claim = shared.claim(claims.place);
    publish_claim(shared, claims, make_claim(p));
    if (claim.row < 0) return;
    if (claim.tiles == 0) continue;
    const Barrier q_full = shared.q_full(q.place);
    shared.q_empty(q.place).wait(q.parity ^ 1);
    q_full.arrive_with_bytes(S::q_bytes);
    load_rows<S::Dk, query_rows>(block_address(shared.q + q.place * S::q_bytes), p.q,
                                 {0, claim.head - p.q_head_begin, claim.row, claim.batch}, q_full);
    q.advance();
    const int kv_head = claim.head / p.group - p.kv_begin;
    each_key_tile<S::keys>(p, claim, [&](const KeySegment& segment, int key) {
      const Barrier k_full = shared.k_full(kv.place), v_full = shared.v_full(kv.place),
                    v_landed = shared.v_landed(kv.place);
      shared.k_empty(kv.place).wait(kv.parity ^ 1);
      const bool arrived = arrivals.await(p, segment.block);
      load_if<S::Dk, S::keys>(arrived, block_address(shared.k + kv.place * S::k_bytes), p.k[segment.block],
                              {0, kv_head, key, claim.batch}, k_full);
      shared.v_empty(kv.place).wait(kv.parity ^ 1);
      const bool last = key + S::keys > segment.end;
      load_if<S::Dv, S::keys>(arrived, block_address(shared.v + kv.place * S::v_bytes), p.v[segment.block],
                              {0, kv_head, key, claim.batch}, last ? v_landed : v_full);
      if (last) v_full.arrive();
      kv.advance();
    });
  }
}

/// Zeroes the rows of values behind a segment; one warp.
template <class S>
__device__ __forceinline__ void clear_tails(const ForwardParams& p, const ForwardShared<S>& shared) {
  const int lane = lane_of_warp();
  Ring<S::claim_slots> claims;
  Ring<S::stages> kv;
  std::uint32_t landed = 0;  // parities by stage
  for (;;) {
    const Claim claim = next_claim(shared, claims);
    if (claim.row < 0) return;
    each_key_tile<S::keys>(p, claim, [&](const KeySegment& segment, int key) {
      shared.v_empty(kv.place).wait(kv.parity ^ 1);
      if (key + S::keys > segment.end) {
        shared.v_landed(kv.place).wait((landed >> kv.place) & 1);
        landed ^= 1u << kv.place;
        clear_rows<S::Dv / tile_columns, S::keys>(block_memory + shared.v + kv.place * S::v_bytes,
                                                  segment.end - key, S::keys);
        fence_async_proxy();
        __syncwarp();
      }
      if (lane == 0) shared.v_full(kv.place).arrive();
      kv.advance();
    });
  }
}

/// Two query rows of a thread: running maxima (log2 units), the thread's part of the sums, sum P V.
template <class S>
struct Rows {
  float top[2], sum[2];
  float o[S::Dv / 2];
};

/// A row of a claim's tile.
struct QueryRow {
  int token, head;
};
[[nodiscard]] __device__ __forceinline__ QueryRow query_row(const ForwardParams& p, const Claim& claim,
                                                            int row_of_tile) {
  const int token = row_of_tile >> p.bundle_log2;
  return {claim.row + token, claim.head + row_of_tile - (token << p.bundle_log2)};
}

/// The empty state of a head.
[[nodiscard]] __device__ __forceinline__ float empty_lse(const ForwardParams& p, int head) {
  return p.sink != nullptr ? static_cast<float>(p.sink[head]) : minus_infinity();
}

template <class S, int h>
__device__ __forceinline__ void begin_row(Rows<S>& rows, const ForwardParams& p, const Claim& claim,
                                          const QueryRow& row) {
  const int lane = lane_of_warp();
  const bool carried = !p.overwrite && row.token < p.q_rows;
  float lse = minus_infinity();
  if (p.overwrite)
    lse = empty_lse(p, row.head);
  else if (carried)
    lse = *row_of<float>(p.lse, claim.batch, row.head, row.token);
  const bool holds = lse != minus_infinity();
  rows.top[h] = lse * log2_e;
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

/// Writes what a row has become; a carried row that saw nothing is left alone.
template <class S, int h>
__device__ __forceinline__ void end_row(const Rows<S>& rows, const ForwardParams& p, const Claim& claim,
                                        const QueryRow& row) {
  using T = typename S::T;
  const int lane = lane_of_warp();
  const bool inside = row.token < p.q_rows;
  const int token = inside ? row.token : 0;
  float* lse = row_of<float>(p.lse, claim.batch, row.head, token);
  const float before = p.overwrite ? empty_lse(p, row.head) : *lse;
  // The four lanes of a row have all read before one of them writes.
  float sum = rows.sum[h];
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  const float top = rows.top[h];
  // Only a row that saw nothing still has the maximum and the sum that it began with.
  const bool untouched = before * log2_e == top && sum == (before == minus_infinity() ? 0.f : 1.f);
  const bool writes = inside && (!untouched || p.overwrite);
  const float inverse = sum > 0 ? 1.f / sum : 0.f;
  const bool pieces = S::Dv <= 128 && p.o_pieces;  // more sums leave no registers for it
  if (p.o.type != DType::fp32 && pieces)
    store_row<T, S::Dv, h>(row_of<typename T::type>(p.o, claim.batch, row.head, token), rows.o, inverse, p.dv,
                           writes);
  if (!writes) return;
  if ((lane & 3) == 0) *lse = untouched ? before : (top + log2f(sum)) * ln_2;
  if (p.o.type == DType::fp32) {
    float* const to = row_of<float>(p.o, claim.batch, row.head, token);
#pragma unroll
    for (int n = 0; n < S::Dv / 8; ++n)
      store_pair(to, n * 8 + 2 * (lane & 3), p.dv, p.o.pairs,
                 {rows.o[4 * n + 2 * h] * inverse, rows.o[4 * n + 2 * h + 1] * inverse});
    return;
  }
  if (pieces) return;
  auto* const to = row_of<typename T::type>(p.o, claim.batch, row.head, token);
#pragma unroll
  for (int n = 0; n < S::Dv / 8; ++n)
    store_rounded<T>(to, n * 8 + 2 * (lane & 3), p.dv, p.o.pairs,
                     {rows.o[4 * n + 2 * h] * inverse, rows.o[4 * n + 2 * h + 1] * inverse});
}

/// Factors by which a tile's scores move the sums of two rows; moved: the same for a warp.
struct Rescale {
  bool moved;
  float factor[2];
};

/// Scores become probabilities, relative to a running maximum that moves only when a score exceeds it by a
/// factor of 2^8: the quotient is the same, and the sums are rarely rescaled.
template <class S>
__device__ __forceinline__ Rescale softmax(float (&s)[S::keys / 2], float (&top)[2], float (&sum)[2],
                                           float scale_log2) {
  constexpr float slack = 8;
  constexpr int blocks = S::keys / 8;
  float tops[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float a = fmaxf(s[2 * h], s[2 * h + 1]), b = fmaxf(s[4 + 2 * h], s[4 + 2 * h + 1]);
#pragma unroll
    for (int n = 2; n < blocks; n += 2) {
      a = fmaxf(a, fmaxf(s[4 * n + 2 * h], s[4 * n + 2 * h + 1]));
      if (n + 1 < blocks) b = fmaxf(b, fmaxf(s[4 * n + 4 + 2 * h], s[4 * n + 4 + 2 * h + 1]));
    }
    tops[h] = fmaxf(a, b) * scale_log2;
  }
  Rescale rescale{__any_sync(~0u, tops[0] > top[0] + slack || tops[1] > top[1] + slack) != 0, {1.f, 1.f}};
  if (rescale.moved) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float high = fmaxf(tops[h], __shfl_xor_sync(~0u, tops[h], 1));
      high = fmaxf(high, __shfl_xor_sync(~0u, high, 2));
      high = fmaxf(high, top[h]);
      rescale.factor[h] = high == minus_infinity() ? 1.f : exp2_fast(top[h] - high);
      top[h] = high;
      sum[h] *= rescale.factor[h];
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float high = top[h] == minus_infinity() ? 0.f : top[h];
    float even = 0, odd = 0;
#pragma unroll
    for (int n = 0; n < blocks; ++n) {
      float &x = s[4 * n + 2 * h], &y = s[4 * n + 2 * h + 1];
      x = exp2_fast(__fmaf_rn(x, scale_log2, -high));
      y = exp2_fast(__fmaf_rn(y, scale_log2, -high));
      even += x, odd += y;
    }
    sum[h] += even + odd;
  }
  return rescale;
}

template <class S>
__device__ __forceinline__ void rescale_sums(float (&o)[S::Dv / 2], const Rescale& rescale) {
  if (!rescale.moved) return;
#pragma unroll
  for (int n = 0; n < S::Dv / 8; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      o[4 * n + 2 * h] *= rescale.factor[h], o[4 * n + 2 * h + 1] *= rescale.factor[h];
}

/// The accumulator layout of P is the operand layout.
template <class S>
__device__ __forceinline__ void round_probabilities(std::uint32_t (&p)[S::keys / 4],
                                                    const float (&s)[S::keys / 2]) {
#pragma unroll
  for (int i = 0; i < S::keys / 4; ++i) p[i] = pack<typename S::T>(s[2 * i], s[2 * i + 1]);
}

/// s = Q K^T and o += P V, enqueued.
template <class S>
__device__ __forceinline__ void multiply_keys(float (&s)[S::keys / 2], const Operand& q, const Operand& k) {
#pragma unroll
  for (int d = 0; d < S::Dk / 16; ++d)
    SharedProduct<typename S::T, S::keys, Major::k, Major::k>::add(s, q.step<Major::k, query_rows>(d),
                                                                   k.step<Major::k, S::keys>(d), d != 0);
}
template <class S>
__device__ __forceinline__ void multiply_values(float (&o)[S::Dv / 2], const std::uint32_t (&p)[S::keys / 4],
                                                const Operand& v) {
#pragma unroll
  for (int k = 0; k < S::keys / 16; ++k)
    RegisterProduct<typename S::T, S::Dv, Major::mn>::add(o, p + 4 * k, v.step<Major::mn, S::keys>(k), true);
}

/// A warpgroup's 64 rows of one claim after the other.
template <class S>
__device__ __forceinline__ void compute(const ForwardParams& p, const ForwardShared<S>& shared,
                                        int consumer) {
  const auto row_of_tile = [] { return 16 * ((thread_now() >> 5) - 4) + (lane_of_warp() >> 2); };
  const auto k_at = [&](int stage) { return Operand(block_address(shared.k + stage * S::k_bytes), S::keys); };
  const auto v_at = [&](int stage) { return Operand(block_address(shared.v + stage * S::v_bytes), S::keys); };
  const Turns<S::turns> turns{consumer};
  turns.begin();
  Ring<S::claim_slots> claims;
  Ring<S::q_buffers> q_ring;
  Ring<S::stages> k_ring, v_ring;
  for (;;) {
    // The claim stays in shared memory until its end: registers are scarce here.
    shared.claim_full(claims.place).wait(claims.parity);
    const Claim& claim = shared.claim(claims.place);
    if (claim.row < 0) return;
    const int tiles = claim.tiles;
    Rows<S> rows;
    begin_row<S, 0>(rows, p, claim, query_row(p, claim, row_of_tile()));
    begin_row<S, 1>(rows, p, claim, query_row(p, claim, row_of_tile() + 8));
    if (tiles > 0) {
      float s[S::keys / 2];
      std::uint32_t probabilities[S::keys / 4];
      const Operand q(block_address(shared.q + q_ring.place * S::q_bytes + 64 * consumer * tile_row_bytes),
                      query_rows);
      shared.q_full(q_ring.place).wait(q_ring.parity);
      shared.k_full(k_ring.place).wait(k_ring.parity);
      products_begin();
      multiply_keys<S>(s, q, k_at(k_ring.place));
      products_commit();
      TileMask mask = read_mask(shared, k_ring.place, row_of_tile());
      products_wait<0>();
      arrive_of_warp(shared.k_empty(k_ring.place));
      k_ring.advance();
      if (tiles == 1) arrive_of_warp(shared.q_empty(q_ring.place));
      if constexpr (S::softcap) cap_scores(s, p.softcap_factor);
      if (mask.masked) hide<S::keys>(s, mask);
      rescale_sums<S>(rows.o, softmax<S>(s, rows.top, rows.sum, p.scale_log2));
      round_probabilities<S>(probabilities, s);
#pragma unroll 1
      for (int tile = 1; tile < tiles; ++tile) {
        shared.k_full(k_ring.place).wait(k_ring.parity);
        turns.take();
        products_begin();
        multiply_keys<S>(s, q, k_at(k_ring.place));
        products_commit();
        shared.v_full(v_ring.place).wait(v_ring.parity);
        products_begin();
        multiply_values<S>(rows.o, probabilities, v_at(v_ring.place));
        products_commit();
        turns.pass();
        mask = read_mask(shared, k_ring.place, row_of_tile());
        products_wait<1>();
        arrive_of_warp(shared.k_empty(k_ring.place));
        k_ring.advance();
        if (tile + 1 == tiles) arrive_of_warp(shared.q_empty(q_ring.place));
        if constexpr (S::softcap) cap_scores(s, p.softcap_factor);
        if (mask.masked) hide<S::keys>(s, mask);
        const Rescale rescale = softmax<S>(s, rows.top, rows.sum, p.scale_log2);
        products_wait<0>();
        arrive_of_warp(shared.v_empty(v_ring.place));
        v_ring.advance();
        round_probabilities<S>(probabilities, s);
        rescale_sums<S>(rows.o, rescale);
      }
      q_ring.advance();
      shared.v_full(v_ring.place).wait(v_ring.parity);
      products_begin();
      multiply_values<S>(rows.o, probabilities, v_at(v_ring.place));
      products_commit();
      products_wait<0>();
      arrive_of_warp(shared.v_empty(v_ring.place));
      v_ring.advance();
    }
    end_row<S, 0>(rows, p, claim, query_row(p, claim, row_of_tile()));
    end_row<S, 1>(rows, p, claim, query_row(p, claim, row_of_tile() + 8));
    arrive_of_warp(shared.claim_empty(claims.place));
    claims.advance();
  }
}

template <class S>
__global__ __launch_bounds__(S::threads, 1) void forward_kernel(const __grid_constant__ ForwardParams p) {
  const ForwardShared<S> shared;
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  const int warpgroup = static_cast<int>(threadIdx.x) >> 7;
  if (warpgroup == 0) {
    shrink_registers<40>();
    const int warp = static_cast<int>(threadIdx.x) >> 5;
    if (warp == 0) {
      if (lane_of_warp() == 0) load_all(p, shared);
    } else if (warp == 1) {
      prepare_key_masks<S>(p, shared);
    } else if (warp == 2) {
      clear_tails(p, shared);
    }
  } else {
    grow_registers<232>();
    compute(p, shared, warpgroup - 1);
  }
}

template <class S>
void launch_forward_of(const ForwardParams& p, cudaStream_t stream) {
  launch_blocks<forward_kernel<S>, S::threads, ForwardShared<S>::bytes>(p, stream,
                                                                        "hopper attention forward");
}

/// Keys of a tile, without a softcap and with one, as forward_tile() says.
template <int Dk, int Dv, int keys, int q_buffers, bool turns, int softcap_keys = keys>
void launch_forward_as(const ForwardParams& p, DType io, cudaStream_t stream) {
  launch_variant(p, io, [&](auto type, auto softcap) {
    constexpr bool capped = decltype(softcap)::value;
    using S = ForwardShape<decltype(type), Dk, Dv, capped ? softcap_keys : keys, q_buffers, turns, capped>;
    launch_forward_of<S>(p, stream);
  });
}

}  // namespace usp::kernels::hopper
