// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../tiles/rows.cuh"
#include "backward_shared.cuh"

/// Attention backward: a tile of 128 key rows stays with its dK and dV, queries and dO of all query heads of
/// the KV head stream by in steps of 64 rows. Two warpgroups hold 64 keys each; S and dP are computed
/// transposed, so that P and dS are operands right from their registers. dS passes through shared memory
/// once, for dQ, of which each warpgroup computes a half and which tensor copies add to global memory.
namespace usp::kernels::hopper {

[[nodiscard]] __device__ __forceinline__ GradClaim make_claim(const BackwardParams& p) {
  const ClaimedTile claimed = claim_tile(p);
  GradClaim claim{claimed.tile.row};
  claim.batch = claimed.head / p.kv_heads, claim.kv_head = p.kv_begin + claimed.head % p.kv_heads;
  claim.head_begin = max(p.head_begin, claim.kv_head * p.group);
  claim.head_end = min(p.head_end, (claim.kv_head + 1) * p.group);
  claim.steps = claimed.tile.streamed_tiles * (claim.head_end - claim.head_begin);
  claim.segment_begin = claimed.tile.segment_begin, claim.segment_end = claimed.tile.segment_end;
  return claim;
}

/// Key rows that segments load together.
struct KeyLoad {
  int shift, begin, end;
  friend __device__ __forceinline__ bool operator==(const KeyLoad& a, const KeyLoad& b) {
    return a.shift == b.shift && a.begin == b.begin && a.end == b.end;
  }
};

/// Steps of a claim, for the warps that move data: body(segment, head, first query row, whether keys are
/// loaded).
template <class Body>
__device__ __forceinline__ void each_step(const BackwardParams& p, const GradClaim& claim, const Body& body) {
  KeyLoad loaded{0, 0, -1};
#pragma unroll 1
  for (int head = claim.head_begin; head < claim.head_end; ++head)
#pragma unroll 1
    for (int i = claim.segment_begin; i < claim.segment_end; ++i) {
      const QuerySegment segment = p.segments[i];
      const KeyLoad load{segment.shift, segment.load_begin, segment.load_end};
#pragma unroll 1
      for (int row = segment.begin; row < segment.end; row += step_rows) {
        body(segment, head, row, !(load == loaded));
        loaded = load;
      }
    }
}

/// Claims work and issues all loads; one thread.
template <class S>
__device__ __forceinline__ void load_all(const BackwardParams& p, const BackwardShared<S>& shared) {
  Ring<S::claim_slots> claims;
  Ring<S::stages> ring;
  Ring<1> keys;
  for (;;) {
    const GradClaim claim = make_claim(p);
    publish_claim(shared, claims, claim);
    if (claim.row < 0) return;
    each_step(p, claim, [&](const QuerySegment& segment, int head, int row, bool loads_keys) {
      const bool tail = row + step_rows > segment.end;
      const Barrier q_full = shared.q_full(ring.place), o_full = shared.o_full(ring.place),
                    landed = shared.tail_landed(ring.place);
      shared.q_empty(ring.place).wait(ring.parity ^ 1);
      if (tail) {
        shared.o_empty(ring.place).wait(ring.parity ^ 1);
        landed.arrive_with_bytes(S::q_bytes + S::o_bytes);
        q_full.arrive();
      } else {
        q_full.arrive_with_bytes(S::q_bytes);
      }
      load_rows<S::Dk, step_rows>(block_address(shared.q + ring.place * S::q_bytes), p.q,
                                  {0, head - p.q_head_begin, row, claim.batch}, tail ? landed : q_full);
      if (tail) {
        o_full.arrive();
      } else {
        shared.o_empty(ring.place).wait(ring.parity ^ 1);
        o_full.arrive_with_bytes(S::o_bytes);
      }
      load_rows<S::Dv, step_rows>(block_address(shared.d_o + ring.place * S::o_bytes), p.d_o,
                                  {0, head - p.d_o_head_begin, row, claim.batch}, tail ? landed : o_full);
      ring.advance();
      // After the step's own rows: consumers give keys back when they meet its note.
      if (loads_keys) {
        shared.keys_empty().wait(keys.parity ^ 1);
        keys.advance();
        shared.keys_landed().arrive_with_bytes(S::k_bytes + S::v_bytes);
        const int key = claim.row + segment.shift;
        load_rows<S::Dk, key_rows>(block_address(shared.k), p.k,
                                   {0, claim.kv_head - p.k_head_begin, key, claim.batch},
                                   shared.keys_landed());
        load_rows<S::Dv, key_rows>(block_address(shared.v), p.v,
                                   {0, claim.kv_head - p.v_head_begin, key, claim.batch},
                                   shared.keys_landed());
      }
    });
  }
}

/// All steps of all claims, for a whole warp: body(claim, segment, head, first query row, whether keys are
/// loaded, place of the step).
template <class S, class Body>
__device__ __forceinline__ void each_claimed_step(const BackwardParams& p, const BackwardShared<S>& shared,
                                                  const Body& body) {
  Ring<S::claim_slots> claims;
  Ring<S::stages> ring;
  for (;;) {
    const GradClaim claim = next_claim(shared, claims);
    if (claim.row < 0) return;
    each_step(p, claim, [&](const QuerySegment& segment, int head, int row, bool loads_keys) {
      body(claim, segment, head, row, loads_keys, ring);
      ring.advance();
    });
  }
}

/// lse and delta of every step, and the note; one warp.
template <class S>
__device__ __forceinline__ void prepare_rows(const BackwardParams& p, const BackwardShared<S>& shared) {
  const int lane = lane_of_warp();
  each_claimed_step(p, shared,
                    [&](const GradClaim& claim, const QuerySegment& segment, int head, int row,
                        bool loads_keys, const auto& ring) {
                      shared.q_empty(ring.place).wait(ring.parity ^ 1);
                      float* const rows = shared.lse(ring.place);
#pragma unroll
                      for (int i = lane; i < step_rows; i += 32) {
                        // Rows behind the segment, and rows without a sum, have no probabilities.
                        float lse = -minus_infinity(), delta = 0;
                        if (row + i < segment.end) {
                          const float given = *row_of<float>(p.lse, claim.batch, head, row + i);
                          if (given != minus_infinity()) {
                            lse = given * log2_e;
                            delta = *row_of<float>(p.delta, claim.batch, head, row + i) * p.scale;
                          }
                        }
                        rows[i] = lse, rows[step_rows + i] = delta;
                      }
                      if (lane == 0)
                        shared.note(ring.place) = {segment.masked, loads_keys ? 1 : 0, row, head};
                      __syncwarp();
                      if (lane == 0) shared.q_full(ring.place).arrive();
                    });
}

/// Which query rows of a step each key row sees, where that is not all; one warp.
template <class S>
__device__ __forceinline__ void prepare_masks(const BackwardParams& p, const BackwardShared<S>& shared) {
  const int lane = lane_of_warp();
  each_claimed_step(
      p, shared,
      [&](const GradClaim& claim, const QuerySegment& segment, int, int row, bool, const auto& ring) {
        shared.q_empty(ring.place).wait(ring.parity ^ 1);
        if (segment.masked != 0) {
          const DeviceSlice& slice = p.slices[segment.slice];
#pragma unroll 1
          for (int key = lane; key < key_rows; key += 32) {
            const Interval seen = queries_of(slice, claim.row + segment.shift + key);
            shared.interval(ring.place)[key] = {seen.begin - row, seen.end - row};
          }
        }
        __syncwarp();
        if (lane == 0) shared.q_full(ring.place).arrive();
      });
}

/// Zeroes rows that are no keys or queries of the segments; one warp.
template <class S>
__device__ __forceinline__ void clear_tails(const BackwardParams& p, const BackwardShared<S>& shared) {
  const int lane = lane_of_warp();
  Ring<1> keys;
  std::uint32_t landed = 0;  // parities by stage
  each_claimed_step(p, shared,
                    [&](const GradClaim& claim, const QuerySegment& segment, int, int row, bool loads_keys,
                        const auto& ring) {
                      shared.q_empty(ring.place).wait(ring.parity ^ 1);
                      shared.o_empty(ring.place).wait(ring.parity ^ 1);
                      if (row + step_rows > segment.end) {
                        shared.tail_landed(ring.place).wait((landed >> ring.place) & 1);
                        landed ^= 1u << ring.place;
                        const int end = segment.end - row;
                        clear_rows<S::Dk / tile_columns, step_rows>(
                            block_memory + shared.q + ring.place * S::q_bytes, end, step_rows);
                        clear_rows<S::Dv / tile_columns, step_rows>(
                            block_memory + shared.d_o + ring.place * S::o_bytes, end, step_rows);
                        fence_async_proxy();
                        __syncwarp();
                      }
                      if (lane == 0) shared.q_full(ring.place).arrive(), shared.o_full(ring.place).arrive();
                      if (loads_keys) {
                        shared.keys_landed().wait(keys.parity);
                        keys.advance();
                        const int begin = segment.load_begin - claim.row,
                                  end = min(segment.load_end - claim.row, key_rows);
                        if (begin > 0 || end < key_rows) {
                          char *const k = block_memory + shared.k, *const v = block_memory + shared.v;
                          clear_rows<S::Dk / tile_columns, key_rows>(k, 0, begin);
                          clear_rows<S::Dk / tile_columns, key_rows>(k, end, key_rows);
                          clear_rows<S::Dv / tile_columns, key_rows>(v, 0, begin);
                          clear_rows<S::Dv / tile_columns, key_rows>(v, end, key_rows);
                          fence_async_proxy();
                        }
                        __syncwarp();
                        if (lane == 0) shared.keys_full().arrive();
                      }
                    });
}

/// S^T becomes P^T: columns are query rows.
__device__ __forceinline__ void probabilities(float (&s)[step_rows / 2], const float* lse, float scale_log2) {
  const int first = 2 * (lane_of_warp() & 3);
#pragma unroll
  for (int n = 0; n < step_rows / 8; ++n) {
    const float2 of = *reinterpret_cast<const float2*>(lse + 8 * n + first);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float &x = s[4 * n + 2 * h], &y = s[4 * n + 2 * h + 1];
      x = exp2_fast(__fmaf_rn(x, scale_log2, -of.x));
      y = exp2_fast(__fmaf_rn(y, scale_log2, -of.y));
    }
  }
}
/// dP^T becomes dS^T, times the scale.
__device__ __forceinline__ void score_grads(float (&dp)[step_rows / 2], const float (&p)[step_rows / 2],
                                            const float* delta, float scale) {
  const int first = 2 * (lane_of_warp() & 3);
#pragma unroll
  for (int n = 0; n < step_rows / 8; ++n) {
    const float2 of = *reinterpret_cast<const float2*>(delta + 8 * n + first);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float &x = dp[4 * n + 2 * h], &y = dp[4 * n + 2 * h + 1];
      x = p[4 * n + 2 * h] * __fmaf_rn(x, scale, -of.x);
      y = p[4 * n + 2 * h + 1] * __fmaf_rn(y, scale, -of.y);
    }
  }
}
template <class T>
__device__ __forceinline__ void round_scores(std::uint32_t (&to)[step_rows / 4],
                                             const float (&s)[step_rows / 2]) {
#pragma unroll
  for (int i = 0; i < step_rows / 4; ++i) to[i] = pack<T>(s[2 * i], s[2 * i + 1]);
}

/// A warp's 16 keys of dS^T into the tile that dQ is made from.
__device__ __forceinline__ void store_score_grads(std::uint32_t tile,
                                                  const std::uint32_t (&ds)[step_rows / 4], int first_key) {
  const int lane = lane_of_warp(), block = lane >> 3, row = first_key + (block & 1) * 8 + (lane & 7);
  const std::uint32_t at = tile + static_cast<std::uint32_t>(row * tile_row_bytes);
#pragma unroll
  for (int k = 0; k < step_rows / 16; ++k)
    store_fragment(at + static_cast<std::uint32_t>(((2 * k + (block >> 1)) ^ (lane & 7)) << 4), ds + 4 * k);
}

/// A warp's 16 query rows of a consumer's columns of dQ into boxes of 32 columns.
template <class S>
__device__ __forceinline__ void store_query_grads(std::uint32_t boxes, const float (&dq)[S::dq_columns / 2],
                                                  int first_row) {
  const int lane = lane_of_warp(), g = lane >> 2, c = lane & 3;
#pragma unroll
  for (int n = 0; n < S::dq_columns / 8; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row + g + 8 * h, piece = (2 * (n & 3) + (c >> 1)) ^ (g & 7);
      store_shared_pair(boxes + static_cast<std::uint32_t>((n >> 2) * S::box_bytes + row * tile_row_bytes +
                                                           (piece << 4) + 8 * (c & 1)),
                        dq[4 * n + 2 * h], dq[4 * n + 2 * h + 1]);
    }
}

/// Writes or adds one row of a thread's part of dK or dV; h is 0 or 1.
template <class T, int D, int h>
__device__ __forceinline__ void write_key_grads(const float (&x)[D / 2], const Strided& to, bool overwrite,
                                                const GradClaim& claim, int row, int width) {
  const int first = 2 * (lane_of_warp() & 3);
  if (to.type != DType::fp32) {
    auto* const halves = row_of<typename T::type>(to, claim.batch, claim.kv_head, row);
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
      store_rounded<T>(halves, n * 8 + first, width, to.pairs, {x[4 * n + 2 * h], x[4 * n + 2 * h + 1]});
    return;
  }
  float* const floats = row_of<float>(to, claim.batch, claim.kv_head, row);
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
    float2 old = {0, 0};
    if (!overwrite) old = load_pair(floats, n * 8 + first, width, to.pairs);
    store_pair(floats, n * 8 + first, width, to.pairs,
               {old.x + x[4 * n + 2 * h], old.y + x[4 * n + 2 * h + 1]});
  }
}
/// Of both rows.
template <class T, int D>
__device__ __forceinline__ void write_key_grads(const float (&x)[D / 2], const Strided& to,
                                                const BackwardParams& p, const GradClaim& claim, int row,
                                                int width) {
  if (row < p.dk_rows) write_key_grads<T, D, 0>(x, to, p.overwrite, claim, row, width);
  if (row + 8 < p.dk_rows) write_key_grads<T, D, 1>(x, to, p.overwrite, claim, row + 8, width);
}

/// A warpgroup's 64 keys of one claim after the other.
template <class S>
__device__ __forceinline__ void compute(const BackwardParams& p, const BackwardShared<S>& shared,
                                        int consumer) {
  using T = typename S::T;
  const int lane = lane_of_warp();
  const auto row_of_tile = [] { return 16 * ((thread_now() >> 5) - 4) + (lane_of_warp() >> 2); };
  const Operand k_rows(block_address(shared.k + 64 * consumer * tile_row_bytes), key_rows);
  const Operand v_rows = k_rows.moved(shared.v - shared.k);
  const Operand k_columns(
      block_address(shared.k + consumer * (S::shares_keys ? key_rows : key_rows / 2) * tile_row_bytes),
      key_rows);
  const auto release = [&](Barrier empty) {
    __syncwarp();
    if (lane == 0) empty.arrive();
  };
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
#pragma unroll
    for (int i = 0; i < S::Dk / 2; ++i) dk[i] = 0;
#pragma unroll
    for (int i = 0; i < S::Dv / 2; ++i) dv[i] = 0;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      shared.q_full(ring.place).wait(ring.parity);
      const StepNote note = shared.note(ring.place);
      if (note.loads_keys != 0) {
        if (step != 0) release(shared.keys_empty());
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
      probabilities(s, shared.lse(ring.place), p.scale_log2);
      products_wait<0>();
      score_grads(dp, s, shared.lse(ring.place) + step_rows, p.scale);
      std::uint32_t rounded[step_rows / 4], ds[step_rows / 4];
      round_scores<T>(rounded, s);
      round_scores<T>(ds, dp);
      {
        products_begin();
#pragma unroll
        for (int k = 0; k < step_rows / 16; ++k)
          RegisterProduct<T, S::Dv, Major::mn>::add(dv, rounded + 4 * k, d_o.step<Major::mn, step_rows>(k),
                                                    true);
        products_commit();
      }
      const std::uint32_t ds_at = block_address(shared.ds + ring.place * S::ds_bytes);
      store_score_grads(ds_at, ds, 16 * ((thread_now() >> 5) - 4));
      fence_async_proxy();
      if (S::shares_keys)
        named_barrier_wait(1, 256);
      else
        named_barrier_wait(2 + consumer, 128);
      float dq[S::dq_columns / 2];
      {
        const Operand ds_columns(ds_at + (S::shares_keys ? 0 : 64 * consumer * tile_row_bytes), key_rows);
        products_begin();
#pragma unroll
        for (int k = 0; k < S::dq_depth / 16; ++k)
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
      release(shared.o_empty(ring.place));
      const int thread = thread_now(), half = (thread >> 7) - 1;
      const std::uint32_t boxes = block_address(shared.dq + half * S::dq_bytes);
      const bool leads = (thread & 127) == 0;
      if (leads) added_boxes_wait_read();
      named_barrier_wait(2 + half, 128);
      store_query_grads<S>(boxes, dq, 16 * ((thread >> 5) & 3));
      fence_async_proxy();
      named_barrier_wait(2 + half, 128);
      if (leads) {
        const StepNote place = shared.note(ring.place);
#pragma unroll
        for (int box = 0; box < S::dq_columns / S::box_columns; ++box)
          add_box(p.dq,
                  {(S::shares_keys ? half * S::dq_columns : 0) + box * S::box_columns,
                   place.head - p.dq_head_begin, place.row, claim.batch},
                  boxes + static_cast<std::uint32_t>(box * S::box_bytes));
        added_boxes_commit();
      }
      products_wait<0>();
      release(shared.q_empty(ring.place));
      ring.advance();
    }
    if (steps > 0) release(shared.keys_empty());
    write_key_grads<T, S::Dk>(dk, p.dk, p, claim, claim.row + row_of_tile(), p.dqk);
    write_key_grads<T, S::Dv>(dv, p.dv_out, p, claim, claim.row + row_of_tile(), p.dv);
    release(shared.claim_empty(claims.place));
    claims.advance();
  }
  if ((thread_now() & 127) == 0) added_boxes_wait();
}

template <class S>
__global__ __launch_bounds__(S::threads, 1) void backward_kernel(const __grid_constant__ BackwardParams p) {
  const BackwardShared<S> shared;
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  const int warpgroup = static_cast<int>(threadIdx.x) >> 7;
  if (warpgroup == 0) {
    shrink_registers<40>();
    const int warp = static_cast<int>(threadIdx.x) >> 5;
    if (warp == 0) {
      if (lane_of_warp() == 0) load_all(p, shared);
    } else if (warp == 1) {
      prepare_rows(p, shared);
    } else if (warp == 2) {
      clear_tails(p, shared);
    } else {
      prepare_masks(p, shared);
    }
  } else {
    grow_registers<232>();
    compute(p, shared, warpgroup - 1);
  }
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
