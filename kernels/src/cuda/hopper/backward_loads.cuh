// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../tiles/rows.cuh"
#include "arrivals.cuh"
#include "backward_shared.cuh"

/// The warps of the backward kernel that claim work, move data and prepare masks.
namespace usp::kernels::hopper {

[[nodiscard]] __device__ __forceinline__ GradClaim make_claim(const BackwardParams& p) {
  const ClaimedTile claimed = claim_tile(p, false);
  GradClaim claim{claimed.tile.row, claimed.tile.row_end};
  claim.block = claimed.tile.block;
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

/// Whether keys are loaded, the step that follows has the same, and there is none.
struct StepKeys {
  bool loads, continues, ends;
};

/// Steps of a claim, for the warps that move data: body(segment, head, first query row, keys).
template <int step_rows, class Body>
__device__ __forceinline__ void each_step(const BackwardParams& p, const GradClaim& claim, const Body& body) {
  const auto load_of = [&](int segment) {
    const QuerySegment& s = p.segments[segment];
    return KeyLoad{s.shift, s.load_begin, s.load_end};
  };
  KeyLoad loaded{0, 0, -1};
#pragma unroll 1
  for (int i = claim.segment_begin; i < claim.segment_end; ++i) {
    const QuerySegment segment = p.segments[i];
    const KeyLoad load{segment.shift, segment.load_begin, segment.load_end};
    const bool last = i + 1 == claim.segment_end;
    const bool joins = !last && load_of(i + 1) == load;
#pragma unroll 1
    for (int head = claim.head_begin; head < claim.head_end; ++head) {
      const bool last_head = head + 1 == claim.head_end;
#pragma unroll 1
      for (int row = segment.begin; row < segment.end; row += step_rows) {
        const bool over = row + step_rows >= segment.end && last_head;
        body(segment, head, row, StepKeys{!(load == loaded), !over || joins, over && last});
        loaded = load;
      }
    }
  }
}

/// Claims work and issues all loads; one thread.
template <class S>
__device__ __forceinline__ void load_all(const BackwardParams& p, const BackwardShared<S>& shared) {
  Ring<S::claim_slots> claims;
  Ring<S::stages> ring;
  Ring<S::o_stages> o_ring;
  Ring<1> keys;
  Arrivals arrivals(p);
  for (;;) {
    // Read where it is published, which no other thread writes: registers are scarce.
    const GradClaim& claim = shared.claim(claims.place);
    publish_claim(shared, claims, make_claim(p));
    if (claim.row < 0) return;
    each_step<S::step_rows>(
        p, claim, [&](const QuerySegment& segment, int head, int row, const StepKeys& step_keys) {
          const bool tail = row + S::step_rows > segment.end;
          const Barrier q_full = shared.q_full(ring.place), o_full = shared.o_full(o_ring.place),
                        landed = shared.tail_landed(ring.place);
          shared.q_empty(ring.place).wait(ring.parity ^ 1);
          if (tail) {
            shared.o_empty(o_ring.place).wait(o_ring.parity ^ 1);
            landed.arrive_with_bytes(S::q_bytes + S::o_bytes);
            q_full.arrive();
          } else {
            q_full.arrive_with_bytes(S::q_bytes);
          }
          load_rows<S::Dk, S::step_rows>(block_address(shared.q + ring.place * S::q_bytes), p.q,
                                         {0, head - p.q_head_begin, row, claim.batch},
                                         tail ? landed : q_full);
          if (tail) {
            o_full.arrive();
          } else {
            shared.o_empty(o_ring.place).wait(o_ring.parity ^ 1);
            o_full.arrive_with_bytes(S::o_bytes);
          }
          load_rows<S::Dv, S::step_rows>(block_address(shared.d_o + o_ring.place * S::o_bytes), p.d_o,
                                         {0, head - p.d_o_head_begin, row, claim.batch},
                                         tail ? landed : o_full);
          ring.advance(), o_ring.advance();
          // After the step's own rows: consumers give keys back when they meet its note.
          if (step_keys.loads) {
            shared.keys_empty().wait(keys.parity ^ 1);
            keys.advance();
            if (!arrivals.await(p, claim.block)) {
              shared.keys_landed().arrive();
              return;
            }
            shared.keys_landed().arrive_with_bytes(S::k_bytes + S::v_bytes);
            const BoxPlace at{0, claim.kv_head - p.kv_begin, claim.row + segment.shift, claim.batch};
            load_rows<S::Dk, S::key_rows>(block_address(shared.k), p.k[claim.block], at,
                                          shared.keys_landed());
            load_rows<S::Dv, S::key_rows>(block_address(shared.v), p.v[claim.block], at,
                                          shared.keys_landed());
          }
        });
  }
}

/// All steps of all claims, for a whole warp: body(claim, segment, head, first query row, keys, place of the
/// step).
template <class S, class Body>
__device__ __forceinline__ void each_claimed_step(const BackwardParams& p, const BackwardShared<S>& shared,
                                                  const Body& body) {
  Ring<S::claim_slots> claims;
  Ring<S::stages> ring;
  for (;;) {
    const GradClaim claim = next_claim(shared, claims);
    if (claim.row < 0) return;
    each_step<S::step_rows>(p, claim,
                            [&](const QuerySegment& segment, int head, int row, const StepKeys& step_keys) {
                              body(claim, segment, head, row, step_keys, ring);
                              ring.advance();
                            });
  }
}

/// Where the value of a query row of a step lies in shared memory: a lane of a warp reads those of two blocks
/// of 8 columns of scores at once.
[[nodiscard]] __device__ __forceinline__ int place_of_row(int row) {
  return (row & ~15) + 4 * ((row >> 1) & 3) + 2 * ((row >> 3) & 1) + (row & 1);
}

/// The warp that prepares lse and delta counts a claim this many steps into the next one: by then the stores
/// of dK and dV are visible and no warp stalls on them; or when a step of the next claim waits this long, as
/// at a gate that is shut.
inline constexpr int steps_to_count = 8;
inline constexpr unsigned count_after_ns = 20'000;

/// Counts a claim of a block that has ended, and tells when it was the block's last. One warp, which has read
/// one claim more since.
/// @param next the slot of the claim, into which the next one comes
template <class S>
__device__ __forceinline__ void count_claim(const BackwardParams& p, const BackwardShared<S>& shared,
                                            const Ring<S::claim_slots>& next, int block) {
  static_assert(S::claim_slots == 2);
  shared.claim_empty(next.place).wait(next.parity ^ 1);
  if (lane_of_warp() != 0 || p.completions[block].flag == nullptr) return;
  if (gates::add_release(p.ended + block, 1) + 1 == p.block_claims[block])
    gates::complete(p.completions[block], p.watch);
}

/// lse and delta of every step; one warp. The latency of memory is longer than a step: those of further steps
/// are on their way while a step's are made ready. It counts the claims too.
template <class S>
__device__ __forceinline__ void prepare_rows(const BackwardParams& p, const BackwardShared<S>& shared) {
  constexpr int ahead = S::stages - 2;  // longer steps are not unrolled: registers are scarce
  Ring<S::claim_slots> claims;
  Ring<S::stages> ring;
  int waiting = 0;  // steps before the ring's place
  int ending = -1;  // block of the claim before, which is yet to be counted; -1: there is none
  const auto finish_steps = [&](int left) {
    for (; waiting > left; --waiting) {
      const int behind = ring.place - waiting, ready = behind < 0 ? behind + S::stages : behind;
      float* const rows = shared.lse(ready);
#pragma unroll(S::step_rows > 64 ? 1 : 2)
      for (int i = lane_of_warp(); i < S::step_rows; i += 32) {
        float &lse = rows[place_of_row(i)], &delta = rows[S::step_rows + place_of_row(i)];
        // Rows without a sum have no probabilities.
        const bool sees = lse != minus_infinity();
        lse = sees ? lse * log2_e : -minus_infinity();
        delta = sees ? delta * p.scale : 0.f;
      }
      __syncwarp();
      if (lane_of_warp() == 0) shared.q_full(ready).arrive();
    }
  };
  const auto finish_all = [&] {
    copied_words_wait<0>();
    finish_steps(0);
  };
  const auto count_before = [&] {
    if (ending < 0) return;
    finish_all();
    count_claim(p, shared, claims, ending);
    ending = -1;
  };
  for (;;) {
    const GradClaim claim = next_claim(shared, claims);
    if (claim.row < 0) return count_before();
    int steps = 0;
    each_step<S::step_rows>(
        p, claim, [&](const QuerySegment& segment, int head, int row, const StepKeys& step_keys) {
          if (ending >= 0 && steps++ >= S::stages &&
              (steps > steps_to_count ||
               !__all_sync(~0u, shared.q_empty(ring.place).is_over(ring.parity ^ 1, count_after_ns))))
            count_before();
          shared.q_empty(ring.place).wait(ring.parity ^ 1);
          float* const rows = shared.lse(ring.place);
#pragma unroll(S::step_rows > 64 ? 1 : 2)
          for (int i = lane_of_warp(); i < S::step_rows; i += 32) {
            float* const at = rows + place_of_row(i);
            if (row + i < segment.end) {
              copy_word(at, row_of<float>(p.lse, claim.batch, head, row + i));
              copy_word(at + S::step_rows, row_of<float>(p.delta, claim.batch, head, row + i));
            } else {
              *at = minus_infinity();
            }
          }
          copied_words_commit();
          ring.advance(), ++waiting;
          if (step_keys.ends) {
            finish_all();  // the next claim may be far
          } else if (waiting > ahead) {
            copied_words_wait<ahead>();
            finish_steps(ahead);
          }
        });
    count_before();
    if (p.ended != nullptr) ending = claim.block;
  }
}

/// Which query rows of a step each key row sees, where that is not all; one warp.
template <class S>
__device__ __forceinline__ void prepare_masks(const BackwardParams& p, const BackwardShared<S>& shared) {
  const int lane = lane_of_warp();
  each_claimed_step(p, shared,
                    [&](const GradClaim& claim, const QuerySegment& segment, int, int row, const StepKeys&,
                        const auto& ring) {
                      shared.q_empty(ring.place).wait(ring.parity ^ 1);
                      if (segment.masked != 0) {
                        const DeviceSlice& slice = p.slices[segment.slice];
#pragma unroll 1
                        for (int key = lane; key < S::key_rows; key += 32) {
                          const Interval seen = queries_of(slice, claim.row + segment.shift + key);
                          const auto in_step = [&](int at) {
                            return static_cast<std::uint8_t>(min(max(at - row, 0), S::step_rows));
                          };
                          shared.interval(ring.place)[key] = {in_step(seen.begin), in_step(seen.end)};
                        }
                      }
                      __syncwarp();
                      if (lane == 0) shared.q_full(ring.place).arrive();
                    });
}

/// Zeroes rows that are no keys or queries of the segments, and writes the note of every step; one warp.
template <class S>
__device__ __forceinline__ void clear_tails(const BackwardParams& p, const BackwardShared<S>& shared) {
  const int lane = lane_of_warp();
  Ring<S::o_stages> o_ring;
  Ring<1> keys;
  std::uint32_t landed = 0;  // parities by stage
  each_claimed_step(p, shared,
                    [&](const GradClaim& claim, const QuerySegment& segment, int head, int row,
                        const StepKeys& step_keys, const auto& ring) {
                      shared.q_empty(ring.place).wait(ring.parity ^ 1);
                      if (row + S::step_rows > segment.end) {
                        shared.o_empty(o_ring.place).wait(o_ring.parity ^ 1);
                        shared.tail_landed(ring.place).wait((landed >> ring.place) & 1);
                        landed ^= 1u << ring.place;
                        const int end = segment.end - row;
                        clear_rows<S::Dk / tile_columns, S::step_rows>(
                            block_memory + shared.q + ring.place * S::q_bytes, end, S::step_rows);
                        clear_rows<S::Dv / tile_columns, S::step_rows>(
                            block_memory + shared.d_o + o_ring.place * S::o_bytes, end, S::step_rows);
                        fence_async_proxy();
                        __syncwarp();
                      }
                      if (lane == 0) {
                        shared.note(ring.place) = {static_cast<std::int16_t>(segment.masked),
                                                   step_keys.loads,
                                                   step_keys.continues,
                                                   step_keys.ends,
                                                   row,
                                                   head};
                        shared.q_full(ring.place).arrive();
                      }
                      shared.o_empty(o_ring.place).wait(o_ring.parity ^ 1);
                      if (lane == 0) shared.o_full(o_ring.place).arrive();
                      o_ring.advance();
                      if (step_keys.loads) {
                        shared.keys_landed().wait(keys.parity);
                        keys.advance();
                        const int begin = segment.load_begin - claim.row,
                                  end = min(segment.load_end - claim.row, S::key_rows);
                        if (begin > 0 || end < S::key_rows) {
                          char *const k = block_memory + shared.k, *const v = block_memory + shared.v;
                          clear_rows<S::Dk / tile_columns, S::key_rows>(k, 0, begin);
                          clear_rows<S::Dk / tile_columns, S::key_rows>(k, end, S::key_rows);
                          clear_rows<S::Dv / tile_columns, S::key_rows>(v, 0, begin);
                          clear_rows<S::Dv / tile_columns, S::key_rows>(v, end, S::key_rows);
                          fence_async_proxy();
                        }
                        __syncwarp();
                        if (lane == 0) shared.keys_full().arrive();
                      }
                    });
}

/// The warpgroup that claims work, moves data and prepares masks.
template <class S>
__device__ __forceinline__ void prepare_steps(const BackwardParams& p, const BackwardShared<S>& shared,
                                              int warp) {
  if (warp == 0) {
    if (lane_of_warp() == 0) load_all(p, shared);
  } else if (warp == 1) {
    prepare_rows(p, shared);
  } else if (warp == 2) {
    clear_tails(p, shared);
  } else {
    prepare_masks(p, shared);
  }
}

}  // namespace usp::kernels::hopper
