// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../tiles/rows.cuh"
#include "query_grad_shared.cuh"

/// dQ alone, for gradients that repeat bit for bit: a tile of 128 query rows stays with its dQ, keys and
/// values of all blocks stream by in the order of the table. Two warpgroups compute 64 rows each; dS is an
/// operand right from its registers. The product of dS and K runs beside the scores of the tile that follows.
namespace usp::kernels::hopper {

/// Loads a tile of keys or values; one that ends behind its segment is yet to be cleared.
template <int columns, int keys>
__device__ __forceinline__ void load_keys(int to, const CUtensorMap& map, const BoxPlace& at, bool last,
                                          Barrier full, Barrier landed) {
  (last ? landed : full).arrive_with_bytes(keys * columns * 2);
  load_rows<columns, keys>(block_address(to), map, at, last ? landed : full);
  if (last) full.arrive();
}

/// Issues all tensor copies; one thread.
template <class S>
__device__ __forceinline__ void load_all(const QueryGradParams& p, const QueryGradShared<S>& shared) {
  Ring<S::claim_slots> claims;
  Ring<S::q_buffers> q;
  Ring<S::stages> kv;
  for (;;) {
    shared.claim_full(claims.place).wait(claims.parity);
    // It stays in shared memory until its end: registers are scarce.
    const Claim& claim = shared.claim(claims.place);
    if (claim.row < 0) return;
    if (claim.tiles > 0) {
      const Barrier q_full = shared.q_full(q.place);
      shared.q_empty(q.place).wait(q.parity ^ 1);
      q_full.arrive_with_bytes(S::q_bytes + S::o_bytes);
      load_rows<S::Dk, query_rows>(block_address(shared.q + q.place * S::q_bytes), p.q,
                                   {0, claim.head - p.q_head_begin, claim.row, claim.batch}, q_full);
      load_rows<S::Dv, query_rows>(block_address(shared.d_o + q.place * S::o_bytes), p.d_o,
                                   {0, claim.head - p.d_o_head_begin, claim.row, claim.batch}, q_full);
      q.advance();
    }
    each_key_tile<S::keys>(p, claim, [&](const KeySegment& segment, int key) {
      const bool last = key + S::keys > segment.end;
      const BoxPlace at{0, claim.kv_head, key, claim.batch};
      shared.k_empty(kv.place).wait(kv.parity ^ 1);
      load_keys<S::Dk, S::keys>(shared.k + kv.place * S::k_bytes, p.k[segment.block], at, last,
                                shared.k_full(kv.place), shared.k_landed(kv.place));
      shared.v_empty(kv.place).wait(kv.parity ^ 1);
      load_keys<S::Dv, S::keys>(shared.v + kv.place * S::v_bytes, p.v[segment.block], at, last,
                                shared.v_full(kv.place), shared.v_landed(kv.place));
      kv.advance();
    });
    shared.claim_empty(claims.place).arrive();
    claims.advance();
  }
}

/// Claims work, and zeroes the rows of keys and values behind a segment; one warp.
template <class S>
__device__ __forceinline__ void claim_and_clear(const QueryGradParams& p, const QueryGradShared<S>& shared) {
  const int lane = lane_of_warp();
  Ring<S::claim_slots> claims;
  Ring<S::stages> kv;
  std::uint32_t landed = 0;  // parities by stage, of keys and of values
  const auto finish = [&](Barrier full) {
    fence_async_proxy();
    __syncwarp();
    if (lane == 0) full.arrive();
  };
  claim_next(p, shared, claims);
  for (;;) {
    const Claim claim = next_claim(shared, claims);
    if (claim.row < 0) return;
    int left = claim.tiles;
    if (left == 0) claim_next(p, shared, claims);
    each_key_tile<S::keys>(p, claim, [&](const KeySegment& segment, int key) {
      if (--left == 0) claim_next(p, shared, claims);
      const int end = segment.end - key;
      shared.k_empty(kv.place).wait(kv.parity ^ 1);
      if (end < S::keys) {
        shared.k_landed(kv.place).wait((landed >> kv.place) & 1);
        clear_rows<S::Dk / tile_columns, S::keys>(block_memory + shared.k + kv.place * S::k_bytes, end,
                                                  S::keys);
      }
      finish(shared.k_full(kv.place));
      shared.v_empty(kv.place).wait(kv.parity ^ 1);
      if (end < S::keys) {
        shared.v_landed(kv.place).wait((landed >> kv.place) & 1);
        landed ^= 1u << kv.place;
        clear_rows<S::Dv / tile_columns, S::keys>(block_memory + shared.v + kv.place * S::v_bytes, end,
                                                  S::keys);
      }
      finish(shared.v_full(kv.place));
      kv.advance();
    });
  }
}

/// Of the two query rows of a thread: lse in log2 units, delta times the scale.
struct RowTerms {
  float lse[2], delta[2];
};
[[nodiscard]] __device__ __forceinline__ RowTerms row_terms(const QueryGradParams& p, const Claim& claim) {
  RowTerms terms;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const QueryRow row = query_row(p, claim, row_of_tile() + 8 * h);
    const int existing = min(row.token, claim.row_end - 1);
    const float lse = *row_of<float>(p.lse, claim.batch, row.head, existing);
    const float delta = *row_of<float>(p.delta, claim.batch, row.head, existing);
    // Other tiles' rows, and rows without a sum, have no probabilities.
    const bool sees = row.token < claim.row_end && lse != minus_infinity();
    terms.lse[h] = sees ? lse * log2_e : -minus_infinity(), terms.delta[h] = sees ? delta * p.scale : 0.f;
  }
  return terms;
}

/// S becomes P, times the slope of a softcap: columns are keys.
template <int keys, bool softcap>
__device__ __forceinline__ void row_probabilities(float (&s)[keys / 2], const RowTerms& of,
                                                  float scale_log2) {
#pragma unroll
  for (int i = 0; i < keys / 2; ++i) {
    const float slope = softcap ? slope_of_cap(s[i]) : 1.f;
    s[i] = exp2_fast(__fmaf_rn(s[i], scale_log2, -of.lse[(i >> 1) & 1]));
    if (softcap) s[i] *= slope;
  }
}
/// dP becomes dS, times the scale.
template <int keys>
__device__ __forceinline__ void row_score_grads(float (&dp)[keys / 2], const float (&p)[keys / 2],
                                                const RowTerms& of, float scale) {
#pragma unroll
  for (int i = 0; i < keys / 2; ++i) dp[i] = p[i] * __fmaf_rn(dp[i], scale, -of.delta[(i >> 1) & 1]);
}

/// Writes a row of a thread's part of dQ, or adds it; h is 0 or 1. By whole warps.
template <class S, int h>
__device__ __forceinline__ void end_query_row(const float (&dq)[S::Dk / 2], const QueryGradParams& p,
                                              const Claim& claim) {
  using T = typename S::T;
  const QueryRow row = query_row(p, claim, row_of_tile() + 8 * h);
  const bool inside = row.token < claim.row_end;
  const int first = 2 * (lane_of_warp() & 3);
  if (p.dq.type != DType::fp32) {
    auto* const halves =
        row_of<typename T::type>(p.dq, claim.batch, row.head, inside ? row.token : claim.row);
    if (p.dq_pieces) return store_row<T, S::Dk, h>(halves, dq, 1.f, p.dqk, inside);
    if (!inside) return;
#pragma unroll
    for (int n = 0; n < S::Dk / 8; ++n)
      store_rounded<T>(halves, n * 8 + first, p.dqk, p.dq.pairs, {dq[4 * n + 2 * h], dq[4 * n + 2 * h + 1]});
    return;
  }
  if (!inside) return;
  float* const floats = row_of<float>(p.dq, claim.batch, row.head, row.token);
#pragma unroll
  for (int n = 0; n < S::Dk / 8; ++n) {
    const float2 pair = {dq[4 * n + 2 * h], dq[4 * n + 2 * h + 1]};
    if (p.overwrite)
      store_pair(floats, n * 8 + first, p.dqk, p.dq.pairs, pair);
    else
      add_pair(floats, n * 8 + first, p.dqk, p.dq.pairs, pair);
  }
}

/// Writes the rows of a claim, which is over then.
template <class S>
__device__ __forceinline__ void end_claim(const float (&dq)[S::Dk / 2], const QueryGradParams& p,
                                          const QueryGradShared<S>& shared, Places<S>& at) {
  const Claim& claim = shared.claim(at.claims.place);
  end_query_row<S, 0>(dq, p, claim);
  end_query_row<S, 1>(dq, p, claim);
  arrive_of_warp(shared.claim_empty(at.claims.place));
  at.claims.advance();
}

/// S = Q K^T and dP = dO V^T of the tiles at a warpgroup's places, enqueued.
template <class S>
__device__ __forceinline__ void multiply_rows(float (&s)[S::keys / 2], float (&dp)[S::keys / 2],
                                              const QueryGradShared<S>& shared, const Places<S>& at,
                                              int consumer) {
  using Product = SharedProduct<typename S::T, S::keys, Major::k, Major::k>;
  const int half = 64 * consumer * tile_row_bytes;
  const Operand q(block_address(shared.q + at.q.place * S::q_bytes + half), query_rows),
      d_o(block_address(shared.d_o + at.q.place * S::o_bytes + half), query_rows),
      k(block_address(shared.k + at.k.place * S::k_bytes), S::keys),
      v(block_address(shared.v + at.v.place * S::v_bytes), S::keys);
  shared.k_full(at.k.place).wait(at.k.parity);
  products_begin();
#pragma unroll
  for (int d = 0; d < S::Dk / 16; ++d)
    Product::add(s, q.step<Major::k, query_rows>(d), k.step<Major::k, S::keys>(d), d != 0);
  products_commit();
  shared.v_full(at.v.place).wait(at.v.parity);
  products_begin();
#pragma unroll
  for (int d = 0; d < S::Dv / 16; ++d)
    Product::add(dp, d_o.step<Major::k, query_rows>(d), v.step<Major::k, S::keys>(d), d != 0);
  products_commit();
}

/// dq += dS K, enqueued.
template <class S>
__device__ __forceinline__ void multiply_score_grads(float (&dq)[S::Dk / 2], const float (&ds)[S::keys / 2],
                                                     const QueryGradShared<S>& shared, const Places<S>& at) {
  const Operand k(block_address(shared.k + at.k.place * S::k_bytes), S::keys);
  std::uint32_t rounded[S::keys / 4];
#pragma unroll
  for (int i = 0; i < S::keys / 4; ++i) rounded[i] = pack<typename S::T>(ds[2 * i], ds[2 * i + 1]);
  products_begin();
#pragma unroll
  for (int i = 0; i < S::keys / 16; ++i)
    RegisterProduct<typename S::T, S::Dk, Major::mn>::add(dq, rounded + 4 * i, k.step<Major::mn, S::keys>(i),
                                                          true);
  products_commit();
}

/// S becomes P beside the product of dP, which is there then: its values are free, and behind the last tile
/// of a claim its queries.
template <class S>
__device__ __forceinline__ void finish_scores(float (&s)[S::keys / 2], const TileMask& mask,
                                              const RowTerms& terms, const QueryGradParams& p,
                                              const QueryGradShared<S>& shared, Places<S>& at,
                                              int tiles_left) {
  if constexpr (S::softcap) cap_scores(s, p.softcap_factor);
  if (mask.masked) hide<S::keys>(s, mask, hidden_score<S::softcap>());
  row_probabilities<S::keys, S::softcap>(s, terms, p.scale_log2);
  products_wait<0>();
  arrive_of_warp(shared.v_empty(at.v.place));
  at.v.advance();
  if (tiles_left != 0) return;
  arrive_of_warp(shared.q_empty(at.q.place));
  at.q.advance();
}

/// Adds dS of a tile of keys, and enqueues the scores of the tile that follows; returns the buffer of the
/// former.
template <class S>
[[nodiscard]] __device__ __forceinline__ Barrier next_scores(float (&dq)[S::Dk / 2], float (&s)[S::keys / 2],
                                                             float (&dp)[S::keys / 2],
                                                             const QueryGradShared<S>& shared,
                                                             const Turns<S::turns>& turns, Places<S>& at) {
  turns.take();
  multiply_score_grads<S>(dq, dp, shared, at);
  const Barrier added = shared.k_empty(at.k.place);
  at.k.advance();
  multiply_rows(s, dp, shared, at, turns.consumer);
  turns.pass();
  return added;
}

/// Adds the tiles of a claim and of those that follow. The first scores of a claim are computed beside the
/// last product of the claim before, which then writes its rows.
template <class S>
__device__ __forceinline__ void add_claims(float (&dq)[S::Dk / 2], const QueryGradParams& p,
                                           const QueryGradShared<S>& shared, const Turns<S::turns>& turns,
                                           Places<S>& at) {
  float s[S::keys / 2], dp[S::keys / 2];
  RowTerms terms = row_terms(p, shared.claim(at.claims.place));
  int left = shared.claim(at.claims.place).tiles - 1;
  shared.q_full(at.q.place).wait(at.q.parity);
  turns.take();
  multiply_rows(s, dp, shared, at, turns.consumer);
  turns.pass();
  TileMask mask = read_mask(shared, at.k.place, row_of_tile());
  products_wait<1>();
  finish_scores(s, mask, terms, p, shared, at, left);
  for (;;) {
    for (;;) {
      row_score_grads<S::keys>(dp, s, terms, p.scale);
      // What is hidden is no gradient, whatever rows without a query hold.
      if (mask.masked) hide<S::keys>(dp, mask, 0.f);
      if (left == 0) break;
      const Barrier added = next_scores(dq, s, dp, shared, turns, at);
      mask = read_mask(shared, at.k.place, row_of_tile());
      products_wait<1>();
      arrive_of_warp(added);
      finish_scores(s, mask, terms, p, shared, at, --left);
    }
    left = tiles_of_next(shared, at);
    if (left == 0) break;
    const Barrier added = next_scores(dq, s, dp, shared, turns, at);
    products_wait<0>();
    arrive_of_warp(added);
    end_claim(dq, p, shared, at);
    clear(dq);
    terms = row_terms(p, shared.claim(at.claims.place));
    mask = read_mask(shared, at.k.place, row_of_tile());
    finish_scores(s, mask, terms, p, shared, at, --left);
  }
  turns.take();
  multiply_score_grads<S>(dq, dp, shared, at);
  turns.pass();
  products_wait<0>();
  arrive_of_warp(shared.k_empty(at.k.place));
  at.k.advance();
}

/// A warpgroup's 64 rows of one claim after the other.
template <class S>
__device__ __forceinline__ void compute(const QueryGradParams& p, const QueryGradShared<S>& shared,
                                        int consumer) {
  const Turns<S::turns> turns{consumer};
  turns.begin();
  Places<S> at;
  for (;;) {
    // The claim stays in shared memory until its end: registers are scarce here.
    shared.claim_full(at.claims.place).wait(at.claims.parity);
    const Claim& claim = shared.claim(at.claims.place);
    if (claim.row < 0) return;
    float dq[S::Dk / 2];
    clear(dq);
    if (claim.tiles > 0) add_claims(dq, p, shared, turns, at);
    end_claim(dq, p, shared, at);
  }
}

template <class S>
__global__ __launch_bounds__(S::threads,
                             1) void query_grad_kernel(const __grid_constant__ QueryGradParams p) {
  const QueryGradShared<S> shared;
  share_block(
      shared,
      [&](int warp) {
        if (warp == 0) {
          if (lane_of_warp() == 0) load_all(p, shared);
        } else if (warp == 1) {
          claim_and_clear(p, shared);
        } else {
          prepare_key_masks<S>(p, shared, warp - 2);
        }
      },
      [&](int consumer) { compute(p, shared, S::turns ? same_of_warp(consumer) : consumer); });
}

template <class S>
void launch_query_grad_of(const QueryGradParams& p, cudaStream_t stream) {
  launch_blocks<query_grad_kernel<S>, S::threads, QueryGradShared<S>::bytes>(
      p, stream, "hopper attention gradient of the queries");
}

/// Keys of a tile, and how many tiles of keys and of queries are held.
template <int Dk, int Dv, int keys, int stages, int q_buffers>
void launch_query_grad_as(const QueryGradParams& p, DType io, cudaStream_t stream) {
  launch_variant(p, io, [&](auto type, auto softcap) {
    constexpr bool capped = decltype(softcap)::value;
    launch_query_grad_of<QueryGradShape<decltype(type), Dk, Dv, keys, stages, q_buffers, capped>>(p, stream);
  });
}

}  // namespace usp::kernels::hopper
