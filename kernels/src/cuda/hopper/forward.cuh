// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "arrivals.cuh"
#include "forward_rows.cuh"
#include "query_tiles.cuh"

/// Attention forward: a tile of 128 query rows stays, keys and values stream by. A row is a token of a head;
/// the heads of a bundle share the tile. One warpgroup moves data and prepares masks, two compute 64 rows
/// each and alternate, so that the softmax of one runs beside the products of the other.
namespace usp::kernels::hopper {

/// Issues all tensor copies; one thread.
template <class S>
__device__ __forceinline__ void load_all(const ForwardParams& p, const ForwardShared<S>& shared) {
  Ring<S::claim_slots> claims;
  Ring<S::q_buffers> q;
  Ring<S::stages> kv;
  Arrivals arrivals(p);
  for (;;) {
    shared.claim_full(claims.place).wait(claims.parity);
    // It stays in shared memory until its end: registers are scarce.
    const Claim& claim = shared.claim(claims.place);
    if (claim.row < 0) return;
    if (claim.tiles > 0) {
      const Barrier q_full = shared.q_full(q.place);
      shared.q_empty(q.place).wait(q.parity ^ 1);
      q_full.arrive_with_bytes(S::q_bytes);
      load_rows<S::Dk, query_rows>(block_address(shared.q + q.place * S::q_bytes), p.q,
                                   {0, claim.head - p.q_head_begin, claim.row, claim.batch}, q_full);
      q.advance();
    }
    each_key_tile<S::keys>(p, claim, [&](const KeySegment& segment, int key) {
      const Barrier k_full = shared.k_full(kv.place), v_full = shared.v_full(kv.place),
                    v_landed = shared.v_landed(kv.place);
      shared.k_empty(kv.place).wait(kv.parity ^ 1);
      const bool arrived = arrivals.await(p, segment.block);
      load_if<S::Dk, S::keys>(arrived, block_address(shared.k + kv.place * S::k_bytes), p.k[segment.block],
                              {0, claim.kv_head, key, claim.batch}, k_full);
      shared.v_empty(kv.place).wait(kv.parity ^ 1);
      const bool last = key + S::keys > segment.end;
      load_if<S::Dv, S::keys>(arrived, block_address(shared.v + kv.place * S::v_bytes), p.v[segment.block],
                              {0, claim.kv_head, key, claim.batch}, last ? v_landed : v_full);
      if (last) v_full.arrive();
      kv.advance();
    });
    shared.claim_empty(claims.place).arrive();
    claims.advance();
  }
}

/// Claims work, and zeroes the rows of values behind a segment; one warp.
template <class S>
__device__ __forceinline__ void claim_and_clear(const ForwardParams& p, const ForwardShared<S>& shared) {
  const int lane = lane_of_warp();
  Ring<S::claim_slots> claims;
  claim_next(p, shared, claims);
  Ring<S::stages> kv;
  std::uint32_t landed = 0;  // parities by stage
  for (;;) {
    const Claim claim = next_claim(shared, claims);
    if (claim.row < 0) return;
    int left = claim.tiles;
    if (left == 0) claim_next(p, shared, claims);
    each_key_tile<S::keys>(p, claim, [&](const KeySegment& segment, int key) {
      // The claim that follows is known when there is room for its first tile, and hardly earlier.
      if (--left == 0) claim_next(p, shared, claims);
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

/// Products of a warpgroup with the tiles at its places.
template <class S>
struct TileProducts {
  const ForwardShared<S>& shared;
  int consumer;

  __device__ __forceinline__ void keys(float (&s)[S::keys / 2], const Places<S>& at) const {
    const Operand q(block_address(shared.q + at.q.place * S::q_bytes + 64 * consumer * tile_row_bytes),
                    query_rows);
    const Operand k(block_address(shared.k + at.k.place * S::k_bytes), S::keys);
    products_begin();
    multiply_keys<S>(s, q, k);
    products_commit();
  }
  __device__ __forceinline__ void values(float (&o)[S::Dv / 2],
                                         const std::uint32_t (&probabilities)[S::keys / 4],
                                         const Places<S>& at) const {
    shared.v_full(at.v.place).wait(at.v.parity);
    products_begin();
    multiply_values<S>(o, probabilities, Operand(block_address(shared.v + at.v.place * S::v_bytes), S::keys));
    products_commit();
  }
};

/// The scores of a tile of keys are there: its buffer is free, and behind the last tile of a claim that of Q.
template <class S>
__device__ __forceinline__ void release_keys(const ForwardShared<S>& shared, Places<S>& at, int tiles_left) {
  arrive_of_warp(shared.k_empty(at.k.place));
  at.k.advance();
  if (tiles_left != 0) return;
  arrive_of_warp(shared.q_empty(at.q.place));
  at.q.advance();
}
template <class S>
__device__ __forceinline__ void release_values(const ForwardShared<S>& shared, Places<S>& at) {
  arrive_of_warp(shared.v_empty(at.v.place));
  at.v.advance();
}

/// Scores of the tile of keys at a warpgroup's place, and beside them the product of the tile before; returns
/// when the scores are there.
template <class S>
__device__ __forceinline__ TileMask begin_tile(float (&s)[S::keys / 2], Rows<S>& rows,
                                               const std::uint32_t (&probabilities)[S::keys / 4],
                                               const TileProducts<S>& products, const Turns<S::turns>& turns,
                                               Places<S>& at, int tiles_left) {
  products.shared.k_full(at.k.place).wait(at.k.parity);
  turns.take();
  products.keys(s, at);
  products.values(rows.o, probabilities, at);
  turns.pass();
  const TileMask mask = read_mask(products.shared, at.k.place, row_of_tile());
  products_wait<1>();
  release_keys(products.shared, at, tiles_left);
  return mask;
}

/// Scores become the operand of the product to come, once that of the tile before is over.
template <class S>
__device__ __forceinline__ void end_tile(float (&s)[S::keys / 2], Rows<S>& rows,
                                         std::uint32_t (&probabilities)[S::keys / 4], const TileMask& mask,
                                         const ForwardParams& p, const ForwardShared<S>& shared,
                                         Places<S>& at) {
  if constexpr (S::softcap) cap_scores(s, p.softcap_factor);
  if (mask.masked) hide<S::keys>(s, mask);
  const Rescale rescale = softmax<S>(s, rows.top, rows.sum, p.scale_log2);
  products_wait<0>();
  release_values(shared, at);
  round_probabilities<S>(probabilities, s);
  rescale_sums<S>(rows.o, rescale);
}

/// The same with the first tile of a claim.
template <class S>
__device__ __forceinline__ void begin_probabilities(float (&s)[S::keys / 2], Rows<S>& rows,
                                                    std::uint32_t (&probabilities)[S::keys / 4],
                                                    const TileMask& mask, const ForwardParams& p) {
  if constexpr (S::softcap) cap_scores(s, p.softcap_factor);
  if (mask.masked) hide<S::keys>(s, mask);
  rescale_sums<S>(rows.o, softmax<S>(s, rows.top, rows.sum, p.scale_log2));
  round_probabilities<S>(probabilities, s);
}

/// Attends the tiles of a claim and of those that follow, but for the end of the last. The first scores of a
/// claim are computed beside the last product of the claim before, which then writes its rows.
template <class S>
__device__ __forceinline__ void attend_claims(Rows<S>& rows, const ForwardParams& p,
                                              const ForwardShared<S>& shared, const Turns<S::turns>& turns,
                                              Places<S>& at) {
  float s[S::keys / 2];
  std::uint32_t probabilities[S::keys / 4];
  const TileProducts<S> products{shared, turns.consumer};
  int left = shared.claim(at.claims.place).tiles - 1;
  shared.q_full(at.q.place).wait(at.q.parity);
  shared.k_full(at.k.place).wait(at.k.parity);
  products.keys(s, at);
  const TileMask first = read_mask(shared, at.k.place, row_of_tile());
  products_wait<0>();
  release_keys(shared, at, left);
  begin_probabilities(s, rows, probabilities, first, p);
  for (;;) {
#pragma unroll 1
    while (left > 0) {
      const TileMask mask = begin_tile(s, rows, probabilities, products, turns, at, --left);
      end_tile(s, rows, probabilities, mask, p, shared, at);
    }
    left = tiles_of_next(shared, at);
    if (left == 0) break;
    const TileMask mask = begin_tile(s, rows, probabilities, products, turns, at, --left);
    products_wait<0>();
    release_values(shared, at);
    end_claim(rows, p, shared, at);
    begin_rows(rows, p, shared.claim(at.claims.place));
    begin_probabilities(s, rows, probabilities, mask, p);
  }
  products.values(rows.o, probabilities, at);
  products_wait<0>();
  release_values(shared, at);
}

/// A warpgroup's 64 rows of one claim after the other.
template <class S>
__device__ __forceinline__ void compute(const ForwardParams& p, const ForwardShared<S>& shared,
                                        int consumer) {
  const Turns<S::turns> turns{consumer};
  turns.begin();
  Places<S> at;
  for (;;) {
    // The claim stays in shared memory until its end: registers are scarce here.
    shared.claim_full(at.claims.place).wait(at.claims.parity);
    const Claim& claim = shared.claim(at.claims.place);
    if (claim.row < 0) return;
    Rows<S> rows;
    begin_rows(rows, p, claim);
    if (claim.tiles > 0) attend_claims(rows, p, shared, turns, at);
    end_claim(rows, p, shared, at);
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
      claim_and_clear(p, shared);
    } else {
      prepare_key_masks<S>(p, shared, warp - 2);
    }
  } else {
    grow_registers<232>();
    compute(p, shared, S::turns ? same_of_warp(warpgroup - 1) : warpgroup - 1);
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
