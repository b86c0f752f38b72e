// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backward_tiles.cuh"
#include "key_grad_rows.cuh"

#include <type_traits>

/// dK and dV of 192 and 128 columns: a tile of 128 key rows stays, 64 for each of two warpgroups, which need
/// nothing of each other. Their sums leave few registers. The scores of a step become P, rounded, before dP
/// has registers; what rounding takes off P is kept beside, since dS is to be as accurate as that of P in
/// fp32. dS, and what of P finds no register, passes through shared memory.
namespace usp::kernels::hopper {

template <class T, int Dk, int Dv>
struct TallKeyGradShape : KeyTileShape<T, Dk, Dv, key_tile(Dk, Dv).keys, key_tile(Dk, Dv).step, 3, 3> {
  static constexpr int score_tiles = 1, dq_tiles = 0;
  /// P of 16 queries is a word each of four; so many of them stay in registers.
  static constexpr int words = key_tile(Dk, Dv).step / 4, kept_words = words - 4;
};

/// Beside what the others share: for each thread P of the last 16 queries of a step, and what rounding took
/// off P.
template <class S>
struct TallShared : BackwardShared<S> {
  static constexpr int quad_bytes = 16 * 128 * S::consumers;
  static constexpr int last = (BackwardShared<S>::bytes + 15) & ~15, residue = last + quad_bytes,
                       bytes = residue + quad_bytes;
  /// A thread's four words.
  [[nodiscard]] static __device__ __forceinline__ std::uint32_t own(int of) {
    return block_address(of + 16 * (thread_now() - 128));
  }
};

/// Where a warpgroup stands in the rings of steps, claims and keys; one register.
class TallPlaces {
 public:
  struct Place {
    int place;
    std::uint32_t parity;
  };
  [[nodiscard]] __device__ __forceinline__ Place step() const {
    return {static_cast<int>(word_ >> 1 & 3), word_ & 1};
  }
  [[nodiscard]] __device__ __forceinline__ Place next_step() const {
    TallPlaces next = *this;
    next.advance_step();
    return next.step();
  }
  __device__ __forceinline__ void advance_step() {
    if ((word_ & 6) == 4)
      word_ = (word_ & ~7u) | (~word_ & 1);
    else
      word_ += 2;
  }
  [[nodiscard]] __device__ __forceinline__ std::uint32_t keys_parity() const { return word_ >> 3 & 1; }
  __device__ __forceinline__ void advance_keys() { word_ ^= 8; }
  [[nodiscard]] __device__ __forceinline__ Place claim() const {
    return {static_cast<int>(word_ >> 4 & 1), word_ >> 5 & 1};
  }
  __device__ __forceinline__ void advance_claim() { word_ = (word_ & 15) | ((word_ + 16) & 48); }

 private:
  std::uint32_t word_ = 0;  ///< from the lowest bit: parity and place of the step, parity of the keys, place
                            ///< and parity of the claim
};

/// A stage in a uniform register, as descriptors ask for.
[[nodiscard]] __device__ __forceinline__ int uniform(int place) {
  return static_cast<int>(__reduce_or_sync(~0u, static_cast<unsigned>(place)));
}

/// How P is rounded: times 2^lift, which `lowered` undoes, so that a small one of fp16 keeps its bits; less
/// than `least` is zero. The four bits behind those that are kept become bits 12 to 15 when shifted left by
/// `shift`.
template <class T>
struct Rounding;
template <>
struct Rounding<Bf16> {
  static constexpr int lift = 0, shift = 0;
  static constexpr float lowered = 1, least = 0;
  static __device__ __forceinline__ float2 unpack(std::uint32_t x) {
    return {__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u)};
  }
};
template <>
struct Rounding<Fp16> {
  static constexpr int lift = 15, shift = 3;
  static constexpr float lowered = 0x1p-15f, least = 0x1p-14f;
  static __device__ __forceinline__ float2 unpack(std::uint32_t x) {
    return __half22float2(reinterpret_cast<const __half2&>(x));
  }
};
/// The four bits of eight numbers, those of the first four in the high halves of bytes.
template <class T>
[[nodiscard]] __device__ __forceinline__ std::uint32_t residues_of(const float (&x)[8]) {
  const auto bytes_of = [&](int i) {
    const auto two = [&](int j) {
      return __byte_perm(__float_as_uint(x[j]) << Rounding<T>::shift,
                         __float_as_uint(x[j + 1]) << Rounding<T>::shift, 0x51);
    };
    return __byte_perm(two(i), two(i + 2), 0x5410);
  };
  return (bytes_of(0) & 0xf0f0f0f0u) | (bytes_of(4) >> 4 & 0x0f0f0f0fu);
}
/// The number from what it was rounded to and its four bits, which are negative where it was rounded up.
template <class T>
[[nodiscard]] __device__ __forceinline__ float unrounded(float rounded, std::uint32_t residues, int i) {
  const std::uint32_t bytes = (i < 4 ? residues : residues << 4) & 0xf0f0f0f0u;
  // A zero, the byte, and its sign twice.
  int bits;
  asm("prmt.b32 %0, %1, 0, %2;\n" : "=r"(bits) : "r"(bytes), "r"(0x8804 + 0x1110 * (i & 3)));
  return __int_as_float(__float_as_int(rounded) + (bits >> Rounding<T>::shift));
}

__device__ __forceinline__ void store_words(std::uint32_t at, const std::uint32_t (&w)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(at), "r"(w[0]), "r"(w[1]), "r"(w[2]),
               "r"(w[3])
               : "memory");
}
__device__ __forceinline__ void load_words(std::uint32_t (&w)[4], std::uint32_t at) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "r"(at)
               : "memory");
}

/// S^T becomes P^T, rounded; `lse` of the step's queries.
template <class S>
__device__ __forceinline__ void round_probabilities(std::uint32_t (&rounded)[S::kept_words],
                                                    const float (&s)[S::step_rows / 2], const float* lse,
                                                    float scale_log2) {
  using T = typename S::T;
  constexpr int lift = Rounding<T>::lift;
  const auto* const fours = reinterpret_cast<const float4*>(lse) + (thread_now() & 3);
  std::uint32_t last[4], residues[S::step_rows / 16];
#pragma unroll
  for (int k = 0; k < S::step_rows / 16; ++k) {
    const float4 of = fours[4 * k];
    const float by_row[4] = {of.x, of.y, of.z, of.w};
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      x[i] = exp2_fast(__fmaf_rn(s[8 * k + i], scale_log2, lift - by_row[(i >> 2) * 2 + (i & 1)]));
      if (lift != 0 && x[i] < Rounding<T>::least) x[i] = 0;
    }
    residues[k] = residues_of<T>(x);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      (4 * k < S::kept_words ? rounded[4 * k + i] : last[i]) = pack<T>(x[2 * i], x[2 * i + 1]);
  }
  store_words(TallShared<S>::own(TallShared<S>::last), last);
  store_words(TallShared<S>::own(TallShared<S>::residue), residues);
}

/// dP^T becomes dS^T, times the scale, in a tile of shared memory; P^T of the last 16 queries is in registers
/// again.
template <class S>
__device__ __forceinline__ void store_score_grads(std::uint32_t tile, const float (&dp)[S::step_rows / 2],
                                                  const std::uint32_t (&rounded)[S::kept_words],
                                                  std::uint32_t (&last)[4], const float* delta, float scale) {
  using T = typename S::T;
  constexpr float lowered = Rounding<T>::lowered;
  const int thread = thread_now(), lane = thread & 31;
  const auto* const fours = reinterpret_cast<const float4*>(delta) + (lane & 3);
  const std::uint32_t row =
      tile + static_cast<std::uint32_t>(((thread >> 1 & 48) + (lane & 15)) * tile_row_bytes);
  const int piece = (lane >> 4) ^ (lane & 7);
  std::uint32_t residues[S::step_rows / 16];
  load_words(residues, TallShared<S>::own(TallShared<S>::residue));
#pragma unroll
  for (int k = 0; k < S::step_rows / 16; ++k) {
    if (4 * k >= S::kept_words) load_words(last, TallShared<S>::own(TallShared<S>::last));
    const float4 of = fours[4 * k];
    const float by_row[4] = {of.x * lowered, of.y * lowered, of.z * lowered, of.w * lowered};
    std::uint32_t ds[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 p = Rounding<T>::unpack(4 * k < S::kept_words ? rounded[4 * k + i] : last[i]);
      const float *const x = dp + 8 * k + 2 * i, *const delta_of = by_row + (i & 2);
      ds[i] =
          pack<T>(unrounded<T>(p.x, residues[k], 2 * i) * __fmaf_rn(x[0], scale * lowered, -delta_of[0]),
                  unrounded<T>(p.y, residues[k], 2 * i + 1) * __fmaf_rn(x[1], scale * lowered, -delta_of[1]));
    }
    store_fragment(row + static_cast<std::uint32_t>((2 * k ^ piece) << 4), ds);
  }
}

/// What a warpgroup multiplies; enqueued.
template <class S, int consumer>
struct TallProducts {
  using T = typename S::T;
  static constexpr int rows = S::step_rows;
  const TallShared<S>& shared;

  [[nodiscard]] __device__ __forceinline__ std::uint32_t ds() const {
    return block_address(shared.scores + 64 * consumer * tile_row_bytes);
  }
  [[nodiscard]] __device__ __forceinline__ Operand keys(int of) const {
    return Operand(block_address(of + 64 * consumer * tile_row_bytes), S::key_rows);
  }
  [[nodiscard]] __device__ __forceinline__ Operand q(int stage) const {
    return Operand(block_address(shared.q + uniform(stage) * S::q_bytes), rows);
  }
  [[nodiscard]] __device__ __forceinline__ Operand d_o(int stage) const {
    return Operand(block_address(shared.d_o + uniform(stage) * S::o_bytes), rows);
  }
  __device__ __forceinline__ void scores(float (&s)[rows / 2], int stage) const {
    products_begin();
    multiply_queries<S, S::Dk, rows>(s, keys(shared.k), q(stage));
    products_commit();
  }
  __device__ __forceinline__ void score_grads(float (&dp)[rows / 2], int stage) const {
    products_begin();
    multiply_queries<S, S::Dv, rows>(dp, keys(shared.v), d_o(stage));
    products_commit();
  }
  /// dV of 16 queries after the other, from the given ones on.
  template <int count>
  __device__ __forceinline__ void add_dv(float (&dv)[S::Dv / 2], const std::uint32_t (&rounded)[count],
                                         int first, int stage) const {
    const Operand grads = d_o(stage);
    products_begin();
#pragma unroll
    for (int i = 0; i < count / 4; ++i)
      RegisterProduct<T, S::Dv, Major::mn>::add(dv, rounded + 4 * i,
                                                grads.step<Major::mn, rows>(first / 16 + i), true);
    products_commit();
  }
  __device__ __forceinline__ void add_dk(float (&dk)[S::Dk / 2], int stage) const {
    const Operand left(ds(), S::key_rows), queries = q(stage);
    products_begin();
#pragma unroll
    for (int i = 0; i < rows / 16; ++i)
      SharedProduct<T, S::Dk, Major::k, Major::mn>::add(dk, left.step<Major::k, S::key_rows>(i),
                                                        queries.step<Major::mn, rows>(i), true);
    products_commit();
  }
};

/// Scores become P.
template <class S>
__device__ __forceinline__ void finish_tall_scores(std::uint32_t (&rounded)[S::kept_words],
                                                   float (&s)[S::step_rows / 2], const BackwardParams& p,
                                                   const TallShared<S>& shared, int stage) {
  const TileMask mask = mask_of_keys(shared, stage, shared.note(stage).masked != 0);
  if (mask.masked) hide<S::step_rows>(s, mask);
  round_probabilities<S>(rounded, s, shared.lse(stage), p.scale_log2);
}

/// From P of the step at its place to dV, dS and dO that is given back. Products of dV are over then: their
/// registers are those of the scores that follow.
template <class S, int consumer>
__device__ __forceinline__ void add_tall_dv(float (&dv)[S::Dv / 2],
                                            const std::uint32_t (&rounded)[S::kept_words],
                                            const BackwardParams& p, const TallShared<S>& shared,
                                            const TallPlaces& at) {
  const TallProducts<S, consumer> products{shared};
  std::uint32_t last[4];
  {
    float dp[S::step_rows / 2];
    shared.o_full(at.step().place).wait(at.step().parity);
    products.score_grads(dp, at.step().place);
    products.add_dv(dv, rounded, 0, at.step().place);
    products_wait<1>();
    store_score_grads<S>(products.ds(), dp, rounded, last, shared.lse(at.step().place) + S::step_rows,
                         p.scale);
    fence_async_proxy();
    named_barrier_wait(1 + consumer, 128);
  }
  products.add_dv(dv, last, S::step_rows - 16, at.step().place);
  products_wait<0>();
  arrive_of_warp(shared.o_empty(at.step().place));
}

/// Adds dK and dV of the steps with the same keys; returns whether the claim ends with them.
template <class S, int consumer>
[[nodiscard]] __device__ __forceinline__ bool add_tall_steps(float (&dk)[S::Dk / 2], float (&dv)[S::Dv / 2],
                                                             const BackwardParams& p,
                                                             const TallShared<S>& shared, TallPlaces& at) {
  const TallProducts<S, consumer> products{shared};
  std::uint32_t rounded[S::kept_words];
  {
    float s[S::step_rows / 2];
    shared.q_full(at.step().place).wait(at.step().parity);
    if (shared.note(at.step().place).loads_keys != 0) {
      shared.keys_full().wait(at.keys_parity());
      at.advance_keys();
    }
    products.scores(s, at.step().place);
    products_wait<0>();
    finish_tall_scores(rounded, s, p, shared, at.step().place);
  }
#pragma unroll 1
  while (shared.note(at.step().place).continues != 0) {
    add_tall_dv<S, consumer>(dv, rounded, p, shared, at);
    float s[S::step_rows / 2];
    shared.q_full(at.next_step().place).wait(at.next_step().parity);
    products.scores(s, at.next_step().place);
    products.add_dk(dk, at.step().place);
    products_wait<1>();
    finish_tall_scores(rounded, s, p, shared, at.next_step().place);
    products_wait<0>();
    arrive_of_warp(shared.q_empty(at.step().place));
    at.advance_step();
  }
  const bool ends = shared.note(at.step().place).ends != 0;
  add_tall_dv<S, consumer>(dv, rounded, p, shared, at);
  products.add_dk(dk, at.step().place);
  products_wait<0>();
  arrive_of_warp(shared.q_empty(at.step().place));
  arrive_of_warp(shared.keys_empty());
  at.advance_step();
  return ends;
}

/// A warpgroup's 64 keys of one claim after the other.
template <class S, int consumer>
__device__ __forceinline__ void compute_tall_key_grads(const BackwardParams& p, const TallShared<S>& shared) {
  using T = typename S::T;
  TallPlaces at;
  for (;;) {
    // The claim stays in shared memory until its end: registers are scarce here.
    shared.claim_full(at.claim().place).wait(at.claim().parity);
    if (shared.claim(at.claim().place).row < 0) return;
    float dk[S::Dk / 2], dv[S::Dv / 2];
    clear(dk);
    clear(dv);
    bool ends = shared.claim(at.claim().place).steps == 0;
#pragma unroll 1
    while (!ends) ends = add_tall_steps<S, consumer>(dk, dv, p, shared, at);
    if constexpr (Rounding<T>::lift != 0)
#pragma unroll
      for (float& x : dv) x *= Rounding<T>::lowered;
    const GradClaim& claim = shared.claim(at.claim().place);
    const BlockGrads& grads = p.grads[claim.block];
    const int row = claim.row + row_of_consumers();
    write_key_grads<T, S::Dk>(dk, grads.dk, grads, claim, row, {0, p.dqk});
    write_key_grads<T, S::Dv>(dv, grads.dv, grads, claim, row, {0, p.dv});
    arrive_of_warp(shared.claim_empty(at.claim().place));
    at.advance_claim();
  }
}

template <class S>
__global__ __launch_bounds__(S::threads,
                             1) void tall_key_grad_kernel(const __grid_constant__ BackwardParams p) {
  const TallShared<S> shared;
  share_block(
      shared, [&](int warp) { prepare_steps(p, shared, warp); },
      [&](int consumer) {
        // Descriptors are known at compile time but for the stage.
        if (consumer == 0)
          compute_tall_key_grads<S, 0>(p, shared);
        else
          compute_tall_key_grads<S, 1>(p, shared);
      });
}

template <class S>
void launch_tall_key_grad_of(const BackwardParams& p, cudaStream_t stream) {
  launch_blocks<tall_key_grad_kernel<S>, S::threads, TallShared<S>::bytes>(
      p, stream, "hopper attention gradient of the keys of tall tiles");
}

}  // namespace usp::kernels::hopper
