// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backward_tiles.cuh"

/// Attention backward: a tile of 128 key rows stays with its dK and dV, queries and dO of all query heads of
/// the KV head stream by in steps of 64 rows, at head dim 64 of 128. Two warpgroups hold 64 keys each; S and
/// dP are computed transposed, so that P and dS are operands right from their registers. dS passes through
/// shared memory once, for dQ, of which each warpgroup computes a half and which tensor copies add to global
/// memory. dQ of a step is computed in the step that follows: no warpgroup waits for dS of the other, and one
/// computes products while the other computes probabilities.
namespace usp::kernels::hopper {

[[nodiscard]] __device__ __forceinline__ int consumer_now() {
  return (thread_now() >> 7) - 1;
}

/// Tiles of dS by the count of steps before: which buffer, and the parity of its phase.
struct ScoreTile {
  int place;
  std::uint32_t parity;
  __device__ __forceinline__ explicit ScoreTile(int step)
      : place(step & 1), parity(static_cast<std::uint32_t>(step >> 1) & 1) {}
};

/// P^T and dS^T of a warpgroup's keys and the queries of a step, rounded.
template <class S>
__device__ __forceinline__ void compute_scores(const BackwardParams& p, const BackwardShared<S>& shared,
                                               const Ring<S::stages>& ring, bool masked,
                                               std::uint32_t (&rounded)[S::step_rows / 4],
                                               std::uint32_t (&ds)[S::step_rows / 4]) {
  constexpr int rows = S::step_rows;
  const Operand q(block_address(shared.q + ring.place * S::q_bytes), rows),
      d_o(block_address(shared.d_o + ring.place * S::o_bytes), rows);
  const Operand k(block_address(shared.k + 64 * consumer_now() * tile_row_bytes), S::key_rows);
  float s[rows / 2], dp[rows / 2];
  products_begin();
  multiply_queries<S, S::Dk, rows>(s, k, q);
  products_commit();
  shared.o_full(ring.place).wait(ring.parity);
  products_begin();
  multiply_queries<S, S::Dv, rows>(dp, k.moved(shared.v - shared.k), d_o);
  products_commit();
  const TileMask mask = mask_of_keys(shared, ring.place, masked);
  products_wait<1>();
  if (mask.masked) hide<rows>(s, mask);
  probabilities<rows>(s, shared.lse(ring.place), p.scale_log2);
  products_wait<0>();
  score_grads<rows>(dp, s, shared.lse(ring.place) + rows, p.scale);
  round_scores<typename S::T, rows>(rounded, s);
  round_scores<typename S::T, rows>(ds, dp);
}

/// dQ of a step, a warpgroup's half, from dS of both; enqueued.
template <class S>
__device__ __forceinline__ void multiply_scores(float (&dq)[S::dq_columns / 2],
                                                const BackwardShared<S>& shared, int place) {
  constexpr int key_rows = S::key_rows;
  const int half = consumer_now() * key_rows * tile_row_bytes;
  const Operand ds(block_address(shared.scores + place * S::score_bytes + (S::halves_rows ? half : 0)),
                   key_rows),
      keys(block_address(shared.k + (S::halves_rows ? 0 : half)), key_rows);
  products_begin();
#pragma unroll
  for (int k = 0; k < key_rows / 16; ++k)
    SharedProduct<typename S::T, S::dq_columns, Major::mn, Major::mn>::add(
        dq, ds.step<Major::mn, key_rows>(k), keys.step<Major::mn, key_rows>(k), k != 0);
  products_commit();
}

/// Gives a warp's rows of dS of a step to both warpgroups.
template <class S>
__device__ __forceinline__ void share_scores(const BackwardShared<S>& shared, const ScoreTile& tile,
                                             const std::uint32_t (&ds)[S::step_rows / 4]) {
  shared.scores_empty(tile.place).wait(tile.parity ^ 1);
  store_scores<S::step_rows, S::key_rows>(block_address(shared.scores + tile.place * S::score_bytes), ds,
                                          16 * warp_of_consumers(), 0);
  fence_async_proxy();
  arrive_of_warp(shared.scores_full(tile.place));
}

/// dQ of the last step with these keys.
template <class S>
__device__ __forceinline__ void finish_keys(const BackwardParams& p, const BackwardShared<S>& shared,
                                            const ScoreTile& tile, int batch) {
  float dq[S::dq_columns / 2];
  shared.scores_full(tile.place).wait(tile.parity);
  multiply_scores(dq, shared, tile.place);
  products_wait<0>();
  arrive_of_warp(shared.scores_empty(tile.place));
  arrive_of_warp(shared.keys_empty());
  add_query_columns(dq, p, shared, batch, true);
}

/// A warpgroup's 64 keys of one claim after the other.
template <class S>
__device__ __forceinline__ void compute(const BackwardParams& p, const BackwardShared<S>& shared) {
  using T = typename S::T;
  Ring<S::claim_slots> claims;
  Ring<S::stages> ring;
  Ring<1> keys;
  int step = 0;
  for (;;) {
    // The claim stays in shared memory until its end: registers are scarce here.
    shared.claim_full(claims.place).wait(claims.parity);
    const GradClaim& claim = shared.claim(claims.place);
    if (claim.row < 0) break;
    float dk[S::Dk / 2], dv[S::Dv / 2];
    clear(dk);
    clear(dv);
    bool late = false;  // dQ of the step before is yet to be computed
#pragma unroll 1
    for (int left = claim.steps; left > 0; --left, ++step) {
      shared.q_full(ring.place).wait(ring.parity);
      const StepNote note = shared.note(ring.place);
      if (note.loads_keys != 0) {
        shared.keys_full().wait(keys.parity);
        keys.advance();
      }
      const Operand q(block_address(shared.q + ring.place * S::q_bytes), S::step_rows),
          d_o(block_address(shared.d_o + ring.place * S::o_bytes), S::step_rows);
      std::uint32_t rounded[S::step_rows / 4], ds[S::step_rows / 4];
      compute_scores(p, shared, ring, note.masked != 0, rounded, ds);
      products_begin();
      multiply_rounded<S, S::Dv>(dv, rounded, d_o);
      products_commit();
      share_scores(shared, ScoreTile(step), ds);
      const ScoreTile before(step - 1);
      if (late) shared.scores_full(before.place).wait(before.parity);
      // Of no use where nothing is late; ptxas serializes products that a branch goes around.
      float dq[S::dq_columns / 2];
      multiply_scores(dq, shared, before.place);
      products_begin();
      multiply_rounded<S, S::Dk>(dk, ds, q);
      products_commit();
      products_wait<1>();
      if (late) arrive_of_warp(shared.scores_empty(before.place));
      add_query_columns(dq, p, shared, claim.batch, late);
      if (lane_of_warp() == 0) shared.place(warp_of_consumers()) = {note.row, note.head};
      products_wait<0>();
      arrive_of_warp(shared.q_empty(ring.place));
      arrive_of_warp(shared.o_empty(ring.place));
      ring.advance();
      late = note.continues != 0;
      if (!late) finish_keys(p, shared, ScoreTile(step), claim.batch);
    }
    const BlockGrads& grads = p.grads[claim.block];
    const int row = claim.row + 16 * warp_of_consumers(), box = box_of_warp(shared);
    if (lane_of_warp() == 0) added_boxes_wait_read();
    __syncwarp();
    write_key_rows<T, S::Dk>(dk, grads.dk, grads, claim, row, p.dqk, box);
    write_key_rows<T, S::Dv>(dv, grads.dv, grads, claim, row, p.dv, box);
    arrive_of_warp(shared.claim_empty(claims.place));
    claims.advance();
  }
  if (lane_of_warp() == 0) added_boxes_wait();
}

template <class S>
__global__ __launch_bounds__(S::threads, 1) void backward_kernel(const __grid_constant__ BackwardParams p) {
  const BackwardShared<S> shared;
  share_block(
      shared, [&](int warp) { prepare_steps(p, shared, warp); },
      [&](int /*consumer*/) { compute(p, shared); });
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
