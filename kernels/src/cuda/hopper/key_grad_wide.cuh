// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backward_tiles.cuh"

#include <type_traits>

/// dK and dV of wide heads: a tile of 64 key rows stays, and the warpgroups share columns of dK and dV, of
/// which one alone has no room for all. Each computes P and dS of half of a step's queries; shared memory
/// gives them to both.
namespace usp::kernels::hopper {

template <class T, int Dk, int Dv, bool softcap_>
struct WideKeyGradShape
    : KeyTileShape<T, Dk, Dv, key_tile(Dk, Dv, softcap_).keys, key_tile(Dk, Dv, softcap_).step,
                   (Dk > 192 ? 2 : 3), (Dk > 192 ? 1 : 2)> {
  /// The scores of a step are multiplied beside the gradients of the step before; more sums leave no
  /// registers for it.
  static constexpr bool overlaps = Dk <= 192;
  static constexpr bool softcap = softcap_;
  /// P and dS of two steps.
  static constexpr int score_tiles = 4, dq_tiles = 0;
  /// Columns of dK and dV of a warpgroup.
  template <int consumer>
  static constexpr int dk_columns = consumer == 0 ? 128 : Dk - 128;
  static constexpr int dv_columns = Dv / 2;
  static constexpr int queries = key_tile(Dk, Dv, softcap_).step / 2;
  static_assert(Dk > 128 && Dk <= 256 && key_tile(Dk, Dv, softcap_).keys == 64);
};

/// Columns of dV or dK += P^T dO or dS^T Q, enqueued.
template <class S, int columns>
__device__ __forceinline__ void multiply_scores(float (&sum)[columns / 2], std::uint32_t scores,
                                                const Operand& rows) {
  const Operand left(scores, S::key_rows);
#pragma unroll
  for (int i = 0; i < S::step_rows / 16; ++i)
    SharedProduct<typename S::T, columns, Major::k, Major::mn>::add(
        sum, left.step<Major::k, S::key_rows>(i), rows.step<Major::mn, S::step_rows>(i), true);
}

/// A warpgroup's columns of one claim after the other. While the gradients of a step are multiplied, the
/// scores of the next one are.
template <class S, int consumer>
__device__ __forceinline__ void compute_wide_key_grads(const BackwardParams& p,
                                                       const BackwardShared<S>& shared) {
  using T = typename S::T;
  constexpr int dk_columns = S::template dk_columns<consumer>;
  constexpr int key_rows = S::key_rows, step_rows = S::step_rows, queries = S::queries;
  const auto first_key = [] { return 16 * ((thread_now() >> 5) & 3); };
  const auto row_of_tile = [&] { return first_key() + (lane_of_warp() >> 2); };
  const Operand k(block_address(shared.k), key_rows), v(block_address(shared.v), key_rows);
  constexpr int first_query = queries * consumer;
  const auto q_at = [&](int stage) {
    return Operand(block_address(shared.q + stage * S::q_bytes), step_rows);
  };
  const auto d_o_at = [&](int stage) {
    return Operand(block_address(shared.d_o + stage * S::o_bytes), step_rows);
  };
  const auto own = [&](const Operand& rows) { return rows.moved(first_query * tile_row_bytes); };
  const auto columns = [&](const Operand& rows, int of_first) {
    return rows.moved(consumer * of_first / tile_columns * step_rows * tile_row_bytes);
  };
  const auto begin_scores = [&](float(&s)[queries / 2], int stage) {
    if constexpr (S::softcap) cap_scores(s, p.softcap_factor);
    TileMask mask{shared.note(stage).masked != 0, {}};
    if (mask.masked) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const Interval seen = shared.interval(stage)[row_of_tile() + 8 * h];
        mask.rows[h] = {seen.begin - first_query, seen.end - first_query};
      }
      hide<queries>(s, mask, hidden_score<S::softcap>());
    }
    if constexpr (!S::softcap) probabilities<queries>(s, shared.lse(stage) + first_query, p.scale_log2);
  };
  Ring<S::claim_slots> claims;
  Ring<S::stages> ring;
  Ring<S::o_stages> o_ring;
  Ring<1> keys;
  int buffer = 0;
  for (;;) {
    // The claim stays in shared memory until its end: registers are scarce here.
    shared.claim_full(claims.place).wait(claims.parity);
    const GradClaim& claim = shared.claim(claims.place);
    if (claim.row < 0) return;
    float dk[dk_columns / 2], dv[S::dv_columns / 2];
    clear(dk);
    clear(dv);
    bool ends = claim.steps == 0;
#pragma unroll 1
    while (!ends) {
      // Steps of the same keys, or one of them.
      float s[queries / 2], dp[queries / 2];
      shared.q_full(ring.place).wait(ring.parity);
      if (shared.note(ring.place).loads_keys != 0) {
        shared.keys_full().wait(keys.parity);
        keys.advance();
      }
      products_begin();
      multiply_queries<S, S::Dk, queries>(s, k, own(q_at(ring.place)));
      products_commit();
      shared.o_full(o_ring.place).wait(o_ring.parity);
      products_begin();
      multiply_queries<S, S::Dv, queries>(dp, v, own(d_o_at(o_ring.place)));
      products_commit();
      products_wait<1>();
      begin_scores(s, ring.place);
      // The last of these steps is computed by code of its own: products are issued on every path or none.
      const auto compute_step = [&](auto is_last) {
        constexpr bool continues = !decltype(is_last)::value;
        products_wait<0>();
        const float *const lse = shared.lse(ring.place) + first_query, *const delta = lse + step_rows;
        finish_scores<S::softcap, queries>(dp, s, lse, delta, p);
        std::uint32_t rounded[queries / 4], ds[queries / 4];
        round_scores<T, queries>(rounded, s);
        round_scores<T, queries>(ds, dp);
        Ring<S::stages> next = ring;
        next.advance();
        Ring<S::o_stages> o_next = o_ring;
        o_next.advance();
        if constexpr (continues) {
          shared.q_full(next.place).wait(next.parity);
          products_begin();
          multiply_queries<S, S::Dk, queries>(s, k, own(q_at(next.place)));
          products_commit();
        }
        const std::uint32_t p_at = block_address(shared.scores +
                                                 2 * (S::stages == 2 ? ring.place : buffer) * S::score_bytes),
                            ds_at = p_at + S::score_bytes;
        store_scores<queries, key_rows>(p_at, rounded, first_key(), first_query / 8);
        store_scores<queries, key_rows>(ds_at, ds, first_key(), first_query / 8);
        fence_async_proxy();
        named_barrier_wait(1, 256);
        products_begin();
        multiply_scores<S, S::dv_columns>(dv, p_at, columns(d_o_at(o_ring.place), S::dv_columns));
        products_commit();
        products_begin();
        multiply_scores<S, dk_columns>(dk, ds_at, columns(q_at(ring.place), S::template dk_columns<0>));
        products_commit();
        products_wait<1>();
        arrive_of_warp(shared.o_empty(o_ring.place));
        if constexpr (continues) {
          shared.o_full(o_next.place).wait(o_next.parity);
          products_begin();
          multiply_queries<S, S::Dv, queries>(dp, v, own(d_o_at(o_next.place)));
          products_commit();
          begin_scores(s, next.place);
          products_wait<1>();
        } else {
          products_wait<0>();
        }
        arrive_of_warp(shared.q_empty(ring.place));
        ring = next, o_ring = o_next;
        buffer ^= 1;
      };
      if constexpr (S::overlaps)
#pragma unroll 1
        while (shared.note(ring.place).continues != 0) compute_step(std::false_type{});
      const StepNote note = shared.note(ring.place);
      ends = note.ends != 0;
      compute_step(std::true_type{});
      if (note.continues == 0) arrive_of_warp(shared.keys_empty());
    }
    const BlockGrads& grads = p.grads[claim.block];
    const int row = claim.row + row_of_tile();
    write_key_grads<T, dk_columns>(dk, grads.dk, grads, claim, row,
                                   {consumer * S::template dk_columns<0>, p.dqk});
    write_key_grads<T, S::dv_columns>(dv, grads.dv, grads, claim, row, {consumer * S::dv_columns, p.dv});
    arrive_of_warp(shared.claim_empty(claims.place));
    claims.advance();
  }
}

template <class S>
__global__ __launch_bounds__(S::threads,
                             1) void wide_key_grad_kernel(const __grid_constant__ BackwardParams p) {
  const BackwardShared<S> shared;
  share_block(
      shared, [&](int warp) { prepare_steps(p, shared, warp); },
      [&](int consumer) {
        if (consumer == 0)
          compute_wide_key_grads<S, 0>(p, shared);
        else
          compute_wide_key_grads<S, 1>(p, shared);
      });
}

template <class S>
void launch_wide_key_grad_of(const BackwardParams& p, cudaStream_t stream) {
  launch_blocks<wide_key_grad_kernel<S>, S::threads, BackwardShared<S>::bytes>(
      p, stream, "hopper attention gradient of the keys of wide heads");
}

template <int Dk, int Dv>
void launch_wide_key_grad_as(const BackwardParams& p, DType io, cudaStream_t stream) {
  launch_variant(p, io, [&](auto type, auto softcap) {
    launch_wide_key_grad_of<WideKeyGradShape<decltype(type), Dk, Dv, decltype(softcap)::value>>(p, stream);
  });
}

}  // namespace usp::kernels::hopper
