// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backward_tiles.cuh"

/// Backward of wide heads: a tile of 64 key rows stays, and the warpgroups share columns of dK and dV, of
/// which one alone has no room for all. Each computes P and dS of half of a step's queries; shared memory
/// gives them to both.
namespace usp::kernels::hopper {

/// `adds_dq`: else dK and dV alone.
template <class T, int Dk, int Dv, bool adds_dq_>
struct WideBackwardShape
    : KeyTileShape<T, Dk, Dv, key_tile(Dk, Dv).keys, key_tile(Dk, Dv).step, 2, (Dk > 192 ? 1 : 2)> {
  static constexpr bool adds_dq = adds_dq_;
  /// P and dS of two steps; a tile of columns of dQ for each warpgroup.
  static constexpr int score_tiles = 4, dq_tiles = adds_dq ? 2 : 0;
  /// Columns of dK and dV of a warpgroup. Those behind the head are computed from what lies there, and not
  /// written.
  static constexpr int dk_columns = 128, dv_columns = Dv / 2;
  static constexpr int queries = key_tile(Dk, Dv).step / 2;
  static_assert(Dk > dk_columns && Dk <= 2 * dk_columns && key_tile(Dk, Dv).keys == 64);
};

/// Adds tiles of columns of dQ, every second of them, from the dS and K of a step.
template <class S>
__device__ __forceinline__ void add_query_columns(const BackwardParams& p, const BackwardShared<S>& shared,
                                                  std::uint32_t ds_at, const GradClaim& claim, int stage,
                                                  int tile) {
  using T = typename S::T;
  const Operand ds(ds_at, S::key_rows);
  const Operand k(block_address(shared.k + tile * S::key_rows * tile_row_bytes), S::key_rows);
  float dq[S::dq_columns / 2];
  products_begin();
#pragma unroll
  for (int i = 0; i < S::key_rows / 16; ++i)
    SharedProduct<T, S::dq_columns, Major::mn, Major::mn>::add(dq, ds.step<Major::mn, S::key_rows>(i),
                                                               k.step<Major::mn, S::key_rows>(i), i != 0);
  products_commit();
  products_wait<0>();
  const int thread = thread_now(), half = (thread >> 7) - 1;
  const std::uint32_t boxes = block_address(shared.dq + half * S::dq_bytes);
  const bool leads = (thread & 127) == 0;
  if (leads) added_boxes_wait_read();
  named_barrier_wait(2 + half, 128);
  store_query_grads<S>(boxes, dq, 16 * ((thread >> 5) & 3));
  fence_async_proxy();
  named_barrier_wait(2 + half, 128);
  if (!leads) return;
  const StepNote note = shared.note(stage);
#pragma unroll
  for (int box = 0; box < S::dq_columns / S::box_columns; ++box)
    add_box(p.dq,
            {tile * S::dq_columns + box * S::box_columns, note.head - p.dq_head_begin, note.row, claim.batch},
            boxes + static_cast<std::uint32_t>(box * S::box_bytes));
  added_boxes_commit();
}

/// A warpgroup's columns of one claim after the other.
template <class S>
__device__ __forceinline__ void compute_wide(const BackwardParams& p, const BackwardShared<S>& shared,
                                             int consumer) {
  using T = typename S::T;
  constexpr int key_rows = S::key_rows, step_rows = S::step_rows, queries = S::queries;
  const int lane = lane_of_warp();
  const auto first_key = [] { return 16 * ((thread_now() >> 5) & 3); };
  const auto row_of_tile = [&] { return first_key() + (lane_of_warp() >> 2); };
  const Operand k(block_address(shared.k), key_rows), v(block_address(shared.v), key_rows);
  const auto release = [&](Barrier empty) {
    __syncwarp();
    if (lane == 0) empty.arrive();
  };
  Ring<S::claim_slots> claims;
  Ring<S::stages> ring;
  Ring<S::o_stages> o_ring;
  Ring<1> keys;
  for (;;) {
    // The claim stays in shared memory until its end: registers are scarce here.
    shared.claim_full(claims.place).wait(claims.parity);
    const GradClaim& claim = shared.claim(claims.place);
    if (claim.row < 0) break;
    const int steps = claim.steps;
    float dk[S::dk_columns / 2], dv[S::dv_columns / 2];
#pragma unroll
    for (int i = 0; i < S::dk_columns / 2; ++i) dk[i] = 0;
#pragma unroll
    for (int i = 0; i < S::dv_columns / 2; ++i) dv[i] = 0;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      shared.q_full(ring.place).wait(ring.parity);
      const StepNote note = shared.note(ring.place);
      if (note.loads_keys != 0) {
        if (step != 0) release(shared.keys_empty());
        shared.keys_full().wait(keys.parity);
        keys.advance();
      }
      const int first_query = queries * consumer;
      const Operand q(block_address(shared.q + ring.place * S::q_bytes), step_rows),
          d_o(block_address(shared.d_o + o_ring.place * S::o_bytes), step_rows);
      const Operand own_q = q.moved(first_query * tile_row_bytes),
                    own_d_o = d_o.moved(first_query * tile_row_bytes);
      float s[queries / 2], dp[queries / 2];
      products_begin();
#pragma unroll
      for (int d = 0; d < S::Dk / 16; ++d)
        SharedProduct<T, queries, Major::k, Major::k>::add(s, k.step<Major::k, key_rows>(d),
                                                           own_q.step<Major::k, step_rows>(d), d != 0);
      products_commit();
      shared.o_full(o_ring.place).wait(o_ring.parity);
      products_begin();
#pragma unroll
      for (int d = 0; d < S::Dv / 16; ++d)
        SharedProduct<T, queries, Major::k, Major::k>::add(dp, v.step<Major::k, key_rows>(d),
                                                           own_d_o.step<Major::k, step_rows>(d), d != 0);
      products_commit();
      TileMask mask{note.masked != 0, {}};
      if (mask.masked)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const Interval seen = shared.interval(ring.place)[row_of_tile() + 8 * h];
          mask.rows[h] = {seen.begin - first_query, seen.end - first_query};
        }
      const float* const lse = shared.lse(ring.place) + first_query;
      products_wait<1>();
      if (mask.masked) hide<queries>(s, mask);
      probabilities<queries>(s, lse, p.scale_log2);
      products_wait<0>();
      score_grads<queries>(dp, s, lse + step_rows, p.scale);
      std::uint32_t rounded[queries / 4], ds[queries / 4];
      round_scores<T, queries>(rounded, s);
      round_scores<T, queries>(ds, dp);
      const std::uint32_t p_at = block_address(shared.scores + 2 * ring.place * S::score_bytes),
                          ds_at = p_at + S::score_bytes;
      store_scores<queries, key_rows>(p_at, rounded, first_key(), first_query / 8);
      store_scores<queries, key_rows>(ds_at, ds, first_key(), first_query / 8);
      fence_async_proxy();
      named_barrier_wait(1, 256);
      const Operand p_rows(p_at, key_rows), ds_rows(ds_at, key_rows);
      const Operand o_columns =
                        d_o.moved(consumer * S::dv_columns / tile_columns * step_rows * tile_row_bytes),
                    q_columns = q.moved(consumer * S::dk_columns / tile_columns * step_rows * tile_row_bytes);
      products_begin();
#pragma unroll
      for (int i = 0; i < step_rows / 16; ++i)
        SharedProduct<T, S::dv_columns, Major::k, Major::mn>::add(
            dv, p_rows.step<Major::k, key_rows>(i), o_columns.step<Major::mn, step_rows>(i), true);
      products_commit();
      products_begin();
#pragma unroll
      for (int i = 0; i < step_rows / 16; ++i)
        SharedProduct<T, S::dk_columns, Major::k, Major::mn>::add(
            dk, ds_rows.step<Major::k, key_rows>(i), q_columns.step<Major::mn, step_rows>(i), true);
      products_commit();
      products_wait<1>();
      release(shared.o_empty(o_ring.place));
      if constexpr (S::adds_dq) {
#pragma unroll 1
        for (int tile = consumer; tile < S::Dk / tile_columns; tile += 2)
          add_query_columns(p, shared, ds_at, claim, ring.place, tile);
      }
      products_wait<0>();
      release(shared.q_empty(ring.place));
      ring.advance(), o_ring.advance();
    }
    if (steps > 0) release(shared.keys_empty());
    const BlockGrads& grads = p.grads[claim.block];
    const int row = claim.row + row_of_tile();
    write_key_grads<T, S::dk_columns>(dk, grads.dk, grads, claim, row, {consumer * S::dk_columns, p.dqk});
    write_key_grads<T, S::dv_columns>(dv, grads.dv, grads, claim, row, {consumer * S::dv_columns, p.dv});
    release(shared.claim_empty(claims.place));
    claims.advance();
  }
  if (S::adds_dq && (thread_now() & 127) == 0) added_boxes_wait();
}

template <class S>
__global__ __launch_bounds__(S::threads,
                             1) void wide_backward_kernel(const __grid_constant__ BackwardParams p) {
  const BackwardShared<S> shared;
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  const int warpgroup = static_cast<int>(threadIdx.x) >> 7;
  if (warpgroup == 0) {
    shrink_registers<40>();
    prepare_steps(p, shared);
  } else {
    grow_registers<232>();
    compute_wide(p, shared, warpgroup - 1);
  }
}

template <int Dk, int Dv, bool adds_dq>
void launch_wide_backward_as(const BackwardParams& p, DType io, cudaStream_t stream) {
  const auto launch = [&](auto shape) {
    using S = decltype(shape);
    launch_blocks<wide_backward_kernel<S>, S::threads, BackwardShared<S>::bytes>(
        p, stream, "hopper attention backward of wide heads");
  };
  if (io == DType::bf16)
    launch(WideBackwardShape<Bf16, Dk, Dv, adds_dq>{});
  else
    launch(WideBackwardShape<Fp16, Dk, Dv, adds_dq>{});
}

}  // namespace usp::kernels::hopper
