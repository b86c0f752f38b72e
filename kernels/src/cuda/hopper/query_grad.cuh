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

/// Claims work and issues all tensor copies; one thread.
template <class S>
__device__ __forceinline__ void load_all(const QueryGradParams& p, const QueryGradShared<S>& shared) {
  Ring<S::claim_slots> claims;
  Ring<1> rows;
  Ring<S::stages> ks, vs;
  for (;;) {
    const Claim claim = make_claim(p);
    publish_claim(shared, claims, claim);
    if (claim.row < 0) return;
    if (claim.tiles == 0) continue;
    shared.q_empty().wait(rows.parity ^ 1);
    rows.advance();
    shared.q_full().arrive_with_bytes(S::q_bytes + S::o_bytes);
    load_rows<S::Dk, query_rows>(block_address(shared.q), p.q,
                                 {0, claim.head - p.q_head_begin, claim.row, claim.batch}, shared.q_full());
    load_rows<S::Dv, query_rows>(block_address(shared.d_o), p.d_o,
                                 {0, claim.head - p.d_o_head_begin, claim.row, claim.batch}, shared.q_full());
    const int kv_head = claim.head / p.group - p.kv_begin;
    each_key_tile<S::keys>(p, claim, [&](const KeySegment& segment, int key) {
      const bool last = key + S::keys > segment.end;
      const BoxPlace at{0, kv_head, key, claim.batch};
      shared.k_empty(ks.place).wait(ks.parity ^ 1);
      load_keys<S::Dk, S::keys>(shared.k + ks.place * S::k_bytes, p.k[segment.block], at, last,
                                shared.k_full(ks.place), shared.k_landed(ks.place));
      shared.v_empty(vs.place).wait(vs.parity ^ 1);
      load_keys<S::Dv, S::keys>(shared.v + vs.place * S::v_bytes, p.v[segment.block], at, last,
                                shared.v_full(vs.place), shared.v_landed(vs.place));
      ks.advance(), vs.advance();
    });
  }
}

/// Zeroes the rows of keys and values behind a segment; one warp.
template <class S>
__device__ __forceinline__ void clear_tails(const QueryGradParams& p, const QueryGradShared<S>& shared) {
  const int lane = lane_of_warp();
  Ring<S::claim_slots> claims;
  Ring<S::stages> ks, vs;
  std::uint32_t k_landed = 0, v_landed = 0;  // parities by stage
  const auto finish = [&](Barrier full) {
    fence_async_proxy();
    __syncwarp();
    if (lane == 0) full.arrive();
  };
  for (;;) {
    const Claim claim = next_claim(shared, claims);
    if (claim.row < 0) return;
    each_key_tile<S::keys>(p, claim, [&](const KeySegment& segment, int key) {
      const int end = segment.end - key;
      shared.k_empty(ks.place).wait(ks.parity ^ 1);
      if (end < S::keys) {
        shared.k_landed(ks.place).wait((k_landed >> ks.place) & 1);
        k_landed ^= 1u << ks.place;
        clear_rows<S::Dk / tile_columns, S::keys>(block_memory + shared.k + ks.place * S::k_bytes, end,
                                                  S::keys);
      }
      finish(shared.k_full(ks.place));
      shared.v_empty(vs.place).wait(vs.parity ^ 1);
      if (end < S::keys) {
        shared.v_landed(vs.place).wait((v_landed >> vs.place) & 1);
        v_landed ^= 1u << vs.place;
        clear_rows<S::Dv / tile_columns, S::keys>(block_memory + shared.v + vs.place * S::v_bytes, end,
                                                  S::keys);
      }
      finish(shared.v_full(vs.place));
      ks.advance(), vs.advance();
    });
  }
}

/// Of the two query rows of a thread: lse in log2 units, delta times the scale.
struct RowTerms {
  float lse[2], delta[2];
};
[[nodiscard]] __device__ __forceinline__ RowTerms row_terms(const QueryGradParams& p, const Claim& claim,
                                                            int row) {
  RowTerms terms;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int existing = min(row + 8 * h, p.q_rows - 1);
    const float lse = *row_of<float>(p.lse, claim.batch, claim.head, existing);
    const float delta = *row_of<float>(p.delta, claim.batch, claim.head, existing);
    // Rows behind the view, and rows without a sum, have no probabilities.
    const bool sees = row + 8 * h < p.q_rows && lse != minus_infinity();
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
                                              const Claim& claim, int row) {
  using T = typename S::T;
  const bool inside = row < p.q_rows;
  const int first = 2 * (lane_of_warp() & 3);
  if (p.dq.type != DType::fp32) {
    auto* const halves = row_of<typename T::type>(p.dq, claim.batch, claim.head, inside ? row : 0);
    if (p.dq_pieces) return store_row<T, S::Dk, h>(halves, dq, 1.f, p.dqk, inside);
    if (!inside) return;
#pragma unroll
    for (int n = 0; n < S::Dk / 8; ++n)
      store_rounded<T>(halves, n * 8 + first, p.dqk, p.dq.pairs, {dq[4 * n + 2 * h], dq[4 * n + 2 * h + 1]});
    return;
  }
  if (!inside) return;
  float* const floats = row_of<float>(p.dq, claim.batch, claim.head, row);
#pragma unroll
  for (int n = 0; n < S::Dk / 8; ++n) {
    const float2 pair = {dq[4 * n + 2 * h], dq[4 * n + 2 * h + 1]};
    if (p.overwrite)
      store_pair(floats, n * 8 + first, p.dqk, p.dq.pairs, pair);
    else
      add_pair(floats, n * 8 + first, p.dqk, p.dq.pairs, pair);
  }
}

/// A warpgroup's 64 rows of one claim after the other.
template <class S>
__device__ __forceinline__ void compute(const QueryGradParams& p, const QueryGradShared<S>& shared,
                                        int consumer) {
  using T = typename S::T;
  constexpr int keys = S::keys;
  const auto row_of_tile = [] { return 16 * ((thread_now() >> 5) - 4) + (lane_of_warp() >> 2); };
  const Operand q(block_address(shared.q + 64 * consumer * tile_row_bytes), query_rows);
  const Operand d_o = q.moved(shared.d_o - shared.q);
  const Turns<S::turns> turns{consumer};
  turns.begin();
  Ring<S::claim_slots> claims;
  Ring<1> rows;
  Ring<S::stages> ks, vs;
  for (;;) {
    // The claim stays in shared memory until its end: registers are scarce here.
    shared.claim_full(claims.place).wait(claims.parity);
    const Claim& claim = shared.claim(claims.place);
    if (claim.row < 0) return;
    const int tiles = claim.tiles;
    float dq[S::Dk / 2];
    clear(dq);
    if (tiles > 0) {
      const RowTerms terms = row_terms(p, claim, claim.row + row_of_tile());
      shared.q_full().wait(rows.parity);
      rows.advance();
      int before = 0;
      turns.take();
#pragma unroll 1
      for (int tile = 0; tile < tiles; ++tile) {
        const Operand k(block_address(shared.k + ks.place * S::k_bytes), keys),
            v(block_address(shared.v + vs.place * S::v_bytes), keys);
        float s[keys / 2], dp[keys / 2];
        shared.k_full(ks.place).wait(ks.parity);
        products_begin();
#pragma unroll
        for (int d = 0; d < S::Dk / 16; ++d)
          SharedProduct<T, keys, Major::k, Major::k>::add(s, q.step<Major::k, query_rows>(d),
                                                          k.step<Major::k, keys>(d), d != 0);
        products_commit();
        shared.v_full(vs.place).wait(vs.parity);
        products_begin();
#pragma unroll
        for (int d = 0; d < S::Dv / 16; ++d)
          SharedProduct<T, keys, Major::k, Major::k>::add(dp, d_o.step<Major::k, query_rows>(d),
                                                          v.step<Major::k, keys>(d), d != 0);
        products_commit();
        turns.pass();
        const TileMask mask = read_mask(shared, ks.place, row_of_tile());
        products_wait<1>();
        if (tile > 0) arrive_of_warp(shared.k_empty(before));
        if constexpr (S::softcap) cap_scores(s, p.softcap_factor);
        if (mask.masked) hide<keys>(s, mask, hidden_score<S::softcap>());
        row_probabilities<keys, S::softcap>(s, terms, p.scale_log2);
        products_wait<0>();
        arrive_of_warp(shared.v_empty(vs.place));
        vs.advance();
        if (tile + 1 == tiles) arrive_of_warp(shared.q_empty());
        row_score_grads<keys>(dp, s, terms, p.scale);
        // What is hidden is no gradient, whatever rows without a query hold.
        if (mask.masked) hide<keys>(dp, mask, 0.f);
        std::uint32_t ds[keys / 4];
#pragma unroll
        for (int i = 0; i < keys / 4; ++i) ds[i] = pack<T>(dp[2 * i], dp[2 * i + 1]);
        turns.take();
        products_begin();
#pragma unroll
        for (int i = 0; i < keys / 16; ++i)
          RegisterProduct<T, S::Dk, Major::mn>::add(dq, ds + 4 * i, k.step<Major::mn, keys>(i), true);
        products_commit();
        before = ks.place;
        ks.advance();
      }
      turns.pass();
      products_wait<0>();
      arrive_of_warp(shared.k_empty(before));
    }
    end_query_row<S, 0>(dq, p, claim, claim.row + row_of_tile());
    end_query_row<S, 1>(dq, p, claim, claim.row + row_of_tile() + 8);
    arrive_of_warp(shared.claim_empty(claims.place));
    claims.advance();
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
          prepare_key_masks<S>(p, shared);
        } else if (warp == 2) {
          clear_tails(p, shared);
        }
      },
      [&](int consumer) { compute(p, shared, consumer); });
}

template <class S>
void launch_query_grad_of(const QueryGradParams& p, cudaStream_t stream) {
  launch_blocks<query_grad_kernel<S>, S::threads, QueryGradShared<S>::bytes>(
      p, stream, "hopper attention gradient of the queries");
}

/// Keys of a tile, and how many tiles are held.
template <int Dk, int Dv, int keys, int stages>
void launch_query_grad_as(const QueryGradParams& p, DType io, cudaStream_t stream) {
  launch_variant(p, io, [&](auto type, auto softcap) {
    launch_query_grad_of<QueryGradShape<decltype(type), Dk, Dv, keys, stages, decltype(softcap)::value>>(
        p, stream);
  });
}

}  // namespace usp::kernels::hopper
