// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backward_tiles.cuh"

/// dK and dV without dQ, for gradients that repeat bit for bit: the backward kernel less the product and the
/// additions whose order is open. The warpgroups need nothing of each other, and the products of a step run
/// beside the scores of the step that follows.
namespace usp::kernels::hopper {

template <class T, int Dk, int Dv, bool softcap_>
struct KeyGradShape : KeyTileShape<T, Dk, Dv, key_tile(Dk, Dv).keys, key_tile(Dk, Dv).step, 4, 4> {
  static constexpr bool softcap = softcap_;
  static constexpr int score_tiles = 0, dq_tiles = 1;
};

/// A warpgroup's 64 keys of one claim after the other.
template <class S>
__device__ __forceinline__ void compute_key_grads(const BackwardParams& p, const BackwardShared<S>& shared,
                                                  int consumer) {
  using T = typename S::T;
  constexpr int key_rows = S::key_rows, step_rows = S::step_rows;
  const auto row_of_tile = [] { return 16 * ((thread_now() >> 5) - 4) + (lane_of_warp() >> 2); };
  const Operand k_rows(block_address(shared.k + 64 * consumer * tile_row_bytes), key_rows);
  const Operand v_rows = k_rows.moved(shared.v - shared.k);
  const Turns<true> turns{consumer};
  turns.begin();
  Ring<S::claim_slots> claims;
  Ring<S::stages> ring;
  Ring<1> keys;
  for (;;) {
    // The claim stays in shared memory until its end: registers are scarce here.
    shared.claim_full(claims.place).wait(claims.parity);
    const GradClaim& claim = shared.claim(claims.place);
    if (claim.row < 0) return;
    const int steps = claim.steps;
    float dk[S::Dk / 2], dv[S::Dv / 2];
    clear(dk);
    clear(dv);
    int before = 0;
    if (steps > 0) turns.take();
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      shared.q_full(ring.place).wait(ring.parity);
      const StepNote note = shared.note(ring.place);
      if (note.loads_keys != 0) {
        shared.keys_full().wait(keys.parity);
        keys.advance();
      }
      const Operand q(block_address(shared.q + ring.place * S::q_bytes), step_rows),
          d_o(block_address(shared.d_o + ring.place * S::o_bytes), step_rows);
      float s[step_rows / 2], dp[step_rows / 2];
      products_begin();
      multiply_queries<S, S::Dk, step_rows>(s, k_rows, q);
      products_commit();
      products_wait<1>();
      if (step != 0) arrive_of_warp(shared.q_empty(before)), arrive_of_warp(shared.o_empty(before));
      shared.o_full(ring.place).wait(ring.parity);
      products_begin();
      multiply_queries<S, S::Dv, step_rows>(dp, v_rows, d_o);
      products_commit();
      turns.pass();
      TileMask mask{note.masked != 0, {}};
      if (mask.masked) {
        mask.rows[0] = shared.interval(ring.place)[row_of_tile()];
        mask.rows[1] = shared.interval(ring.place)[row_of_tile() + 8];
      }
      products_wait<1>();
      if constexpr (S::softcap) cap_scores(s, p.softcap_factor);
      if (mask.masked) hide<step_rows>(s, mask, hidden_score<S::softcap>());
      const float *const lse = shared.lse(ring.place), *const delta = lse + step_rows;
      if constexpr (!S::softcap) probabilities<step_rows>(s, lse, p.scale_log2);
      products_wait<0>();
      finish_scores<S::softcap, step_rows>(dp, s, lse, delta, p);
      std::uint32_t rounded[step_rows / 4], ds[step_rows / 4];
      round_scores<T, step_rows>(rounded, s);
      round_scores<T, step_rows>(ds, dp);
      if (note.continues == 0) arrive_of_warp(shared.keys_empty());
      turns.take();
      products_begin();
      multiply_rounded<S, S::Dv>(dv, rounded, d_o);
      multiply_rounded<S, S::Dk>(dk, ds, q);
      products_commit();
      before = ring.place;
      ring.advance();
    }
    products_wait<0>();
    if (steps > 0) {
      turns.pass();
      arrive_of_warp(shared.q_empty(before)), arrive_of_warp(shared.o_empty(before));
    }
    const BlockGrads& grads = p.grads[claim.block];
    const int row = claim.row + 16 * warp_of_consumers(), box = box_of_warp(shared);
    write_key_rows<T, S::Dk>(dk, grads.dk, grads, claim, row, p.dqk, box);
    write_key_rows<T, S::Dv>(dv, grads.dv, grads, claim, row, p.dv, box);
    arrive_of_warp(shared.claim_empty(claims.place));
    claims.advance();
  }
}

template <class S>
__global__ __launch_bounds__(S::threads, 1) void key_grad_kernel(const __grid_constant__ BackwardParams p) {
  const BackwardShared<S> shared;
  share_block(
      shared, [&](int warp) { prepare_steps(p, shared, warp); },
      [&](int consumer) { compute_key_grads(p, shared, consumer); });
}

template <int Dk, int Dv>
void launch_key_grad_as(const BackwardParams& p, DType io, cudaStream_t stream) {
  launch_variant(p, io, [&](auto type, auto softcap) {
    using S = KeyGradShape<decltype(type), Dk, Dv, decltype(softcap)::value>;
    launch_blocks<key_grad_kernel<S>, S::threads, BackwardShared<S>::bytes>(
        p, stream, "hopper attention gradient of the keys");
  });
}

}  // namespace usp::kernels::hopper
