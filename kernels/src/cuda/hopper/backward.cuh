// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backward_tiles.cuh"

/// Attention backward: a tile of 128 key rows stays with its dK and dV, queries and dO of all query heads of
/// the KV head stream by in steps of 64 rows. Two warpgroups hold 64 keys each; S and dP are computed
/// transposed, so that P and dS are operands right from their registers. dS passes through shared memory
/// once, for dQ, of which each warpgroup computes a half and which tensor copies add to global memory.
namespace usp::kernels::hopper {

/// A warpgroup's 64 keys of one claim after the other.
template <class S>
__device__ __forceinline__ void compute(const BackwardParams& p, const BackwardShared<S>& shared,
                                        int consumer) {
  using T = typename S::T;
  constexpr int key_rows = S::key_rows, step_rows = S::step_rows;
  const auto row_of_tile = [] { return 16 * ((thread_now() >> 5) - 4) + (lane_of_warp() >> 2); };
  const Operand k_rows(block_address(shared.k + 64 * consumer * tile_row_bytes), key_rows);
  const Operand v_rows = k_rows.moved(shared.v - shared.k);
  const Operand k_columns(block_address(shared.k + consumer * key_rows * tile_row_bytes), key_rows);
  Ring<S::claim_slots> claims;
  Ring<S::stages> ring;
  Ring<1> keys;
  for (;;) {
    // The claim stays in shared memory until its end: registers are scarce here.
    shared.claim_full(claims.place).wait(claims.parity);
    const GradClaim& claim = shared.claim(claims.place);
    if (claim.row < 0) break;
    const int steps = claim.steps;
    float dk[S::Dk / 2], dv[S::Dv / 2];
    clear(dk);
    clear(dv);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      shared.q_full(ring.place).wait(ring.parity);
      const StepNote note = shared.note(ring.place);
      if (note.loads_keys != 0) {
        if (step != 0) arrive_of_warp(shared.keys_empty());
        shared.keys_full().wait(keys.parity);
        keys.advance();
      }
      const int q_at = shared.q + ring.place * S::q_bytes, o_at = shared.d_o + ring.place * S::o_bytes;
      const Operand q(block_address(q_at), step_rows), d_o(block_address(o_at), step_rows);
      float s[step_rows / 2], dp[step_rows / 2];
      {
        products_begin();
#pragma unroll
        for (int d = 0; d < S::Dk / 16; ++d)
          SharedProduct<T, step_rows, Major::k, Major::k>::add(s, k_rows.step<Major::k, key_rows>(d),
                                                               q.step<Major::k, step_rows>(d), d != 0);
        products_commit();
        shared.o_full(ring.place).wait(ring.parity);
        products_begin();
#pragma unroll
        for (int d = 0; d < S::Dv / 16; ++d)
          SharedProduct<T, step_rows, Major::k, Major::k>::add(dp, v_rows.step<Major::k, key_rows>(d),
                                                               d_o.step<Major::k, step_rows>(d), d != 0);
        products_commit();
      }
      TileMask mask{note.masked != 0, {}};
      if (mask.masked) {
        mask.rows[0] = shared.interval(ring.place)[row_of_tile()];
        mask.rows[1] = shared.interval(ring.place)[row_of_tile() + 8];
      }
      products_wait<1>();
      if (mask.masked) hide<step_rows>(s, mask);
      probabilities<step_rows>(s, shared.lse(ring.place), p.scale_log2);
      products_wait<0>();
      score_grads<step_rows>(dp, s, shared.lse(ring.place) + step_rows, p.scale);
      std::uint32_t rounded[step_rows / 4], ds[step_rows / 4];
      round_scores<T, step_rows>(rounded, s);
      round_scores<T, step_rows>(ds, dp);
      {
        products_begin();
#pragma unroll
        for (int k = 0; k < step_rows / 16; ++k)
          RegisterProduct<T, S::Dv, Major::mn>::add(dv, rounded + 4 * k, d_o.step<Major::mn, step_rows>(k),
                                                    true);
        products_commit();
      }
      const std::uint32_t ds_at = block_address(shared.scores + ring.place * S::score_bytes);
      store_scores<step_rows, key_rows>(ds_at, ds, 16 * ((thread_now() >> 5) - 4), 0);
      fence_async_proxy();
      named_barrier_wait(1, 256);
      float dq[S::dq_columns / 2];
      {
        const Operand ds_columns(ds_at, key_rows);
        products_begin();
#pragma unroll
        for (int k = 0; k < key_rows / 16; ++k)
          SharedProduct<T, S::dq_columns, Major::mn, Major::mn>::add(
              dq, ds_columns.step<Major::mn, key_rows>(k), k_columns.step<Major::mn, key_rows>(k), k != 0);
        products_commit();
        products_begin();
#pragma unroll
        for (int k = 0; k < step_rows / 16; ++k)
          RegisterProduct<T, S::Dk, Major::mn>::add(dk, ds + 4 * k, q.step<Major::mn, step_rows>(k), true);
        products_commit();
      }
      products_wait<1>();
      arrive_of_warp(shared.o_empty(ring.place));
      add_query_columns(dq, p, shared, ring.place, claim.batch, consumer);
      products_wait<0>();
      arrive_of_warp(shared.q_empty(ring.place));
      ring.advance();
    }
    if (steps > 0) arrive_of_warp(shared.keys_empty());
    const BlockGrads& grads = p.grads[claim.block];
    write_key_grads<T, S::Dk>(dk, grads.dk, grads, claim, claim.row + row_of_tile(), {0, p.dqk});
    write_key_grads<T, S::Dv>(dv, grads.dv, grads, claim, claim.row + row_of_tile(), {0, p.dv});
    arrive_of_warp(shared.claim_empty(claims.place));
    claims.advance();
  }
  if ((thread_now() & 127) == 0) added_boxes_wait();
}

template <class S>
__global__ __launch_bounds__(S::threads, 1) void backward_kernel(const __grid_constant__ BackwardParams p) {
  const BackwardShared<S> shared;
  share_block(
      shared, [&](int warp) { prepare_steps(p, shared, warp); },
      [&](int consumer) { compute(p, shared, consumer); });
}

template <class S>
void launch_backward_of(const BackwardParams& p, cudaStream_t stream) {
  launch_blocks<backward_kernel<S>, S::threads, BackwardShared<S>::bytes>(p, stream,
                                                                          "hopper attention backward");
}

template <int Dk, int Dv>
void launch_backward_as(const BackwardParams& p, DType io, cudaStream_t stream) {
  if (io == DType::bf16)
    launch_backward_of<BackwardShape<Bf16, Dk, Dv>>(p, stream);
  else
    launch_backward_of<BackwardShape<Fp16, Dk, Dv>>(p, stream);
}

}  // namespace usp::kernels::hopper
