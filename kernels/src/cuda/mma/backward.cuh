// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../tiles/launch.cuh"
#include "tensor.cuh"
#include "walk.cuh"

namespace usp::kernels::mma {

/// Keys and values of a tile of gradient rows stay with dK and dV; queries and dO of all query heads of the
/// KV head stream by in tiles of 64 rows. Warps share S and dP by rows and keys, dK and dV by keys and
/// columns, dQ by rows and columns; P and dS pass through shared memory.
template <class T_, int Dk_, int Dv_, bool terms_>
struct BackwardTraits {
  using T = T_;
  static constexpr int Dk = Dk_, Dv = Dv_;
  static constexpr bool terms = terms_;
  static constexpr int rows = streamed_rows, keys = backward_keys(Dk, terms);
  static constexpr int warps = 8, threads = warps * 32;

  static constexpr int score_warps_m = keys == 128 ? 2 : 4, score_warps_n = warps / score_warps_m;
  static constexpr int MB = rows / score_warps_m / 16, NB = keys / score_warps_n / 8;

  static constexpr int column_warps = score_warps_m;
  static_assert(keys == 32 * score_warps_n, "a warp's gradient rows are the keys of its scores");
  static constexpr int KB = 2, DkB = Dk / column_warps / 8, DvB = Dv / column_warps / 8;

  static constexpr int query_warps_m = Dk == 96 ? 4 : 2, query_warps_n = warps / query_warps_m;
  static constexpr int QB = rows / query_warps_m / 16, DqB = Dk / query_warps_n / 8;
  static_assert(DkB % 2 == 0 && DvB % 2 == 0 && DqB % 2 == 0, "fragments come in pairs of column blocks");

  static constexpr int k_bytes = keys * Dk * 2, v_bytes = keys * Dv * 2, p_bytes = rows * keys * 2;
  static constexpr int q_bytes = rows * Dk * 2, o_bytes = rows * Dv * 2, row_bytes = 2 * rows * 4;
  static constexpr int stage_bytes = q_bytes + o_bytes + row_bytes;
  static constexpr int shared_bytes(int stages) { return backward_shared_bytes(Dk, Dv, terms, stages); }
  static_assert(shared_bytes(1) == k_bytes + v_bytes + 2 * p_bytes + stage_bytes,
                "as laid out in the kernel");
};

/// acc += A B over `steps` of depth 16, whose fragments the readers give: one 16 x 16 block of A, two 16 x 8
/// blocks of B.
template <class T, int steps, int MB, int NB, class ReadA, class ReadB>
__device__ __forceinline__ void multiply_steps(float (&acc)[MB][NB][4], const ReadA& read_a,
                                               const ReadB& read_b) {
#pragma unroll
  for (int k = 0; k < steps; ++k) {
    std::uint32_t a[MB][4];
#pragma unroll
    for (int m = 0; m < MB; ++m) read_a(a[m], k, m);
#pragma unroll
    for (int n = 0; n < NB / 2; ++n) {
      std::uint32_t b[4];
      read_b(b, k, n);
#pragma unroll
      for (int m = 0; m < MB; ++m) {
        multiply<T>(acc[m][2 * n], a[m], b[0], b[1]);
        multiply<T>(acc[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// acc += A^T B: both [depth][columns].
template <class T, int depth, int MB, int NB, class LaneA, class LaneB>
__device__ __forceinline__ void multiply_transposed(float (&acc)[MB][NB][4], const LaneA& a_lane,
                                                    const LaneB& b_lane, std::uint32_t b_at) {
  multiply_steps<T, depth / 16>(
      acc, [&](std::uint32_t(&r)[4], int k, int m) { load_fragment_transposed(r, a_lane.at(k * 16, 2 * m)); },
      [&](std::uint32_t(&r)[4], int k, int n) {
        load_fragment_transposed(r, b_at + b_lane.at(k * 16, 2 * n));
      });
}

/// acc += A B^T: both [rows][depth].
template <class T, int depth, int MB, int NB, class LaneA, class LaneB>
__device__ __forceinline__ void multiply_rows(float (&acc)[MB][NB][4], const LaneA& a_lane,
                                              std::uint32_t a_at, const LaneB& b_lane) {
  multiply_steps<T, depth / 16>(
      acc, [&](std::uint32_t(&r)[4], int k, int m) { load_fragment(r, a_at + a_lane.at(m * 16, 2 * k)); },
      [&](std::uint32_t(&r)[4], int k, int n) { load_fragment(r, b_lane.at(n * 16, 2 * k)); });
}

/// acc += A B: A is [rows][depth], B is [depth][columns].
template <class T, int depth, int MB, int NB, class LaneA, class LaneB>
__device__ __forceinline__ void multiply_plain(float (&acc)[MB][NB][4], const LaneA& a_lane,
                                               const LaneB& b_lane) {
  multiply_steps<T, depth / 16>(
      acc, [&](std::uint32_t(&r)[4], int k, int m) { load_fragment(r, a_lane.at(m * 16, 2 * k)); },
      [&](std::uint32_t(&r)[4], int k, int n) { load_fragment_transposed(r, b_lane.at(k * 16, 2 * n)); });
}

/// A warp's part of P or dS to a tile in shared memory, from a row and a chunk that is a multiple of NB.
template <int Keys, int MB, int NB, class T>
__device__ __forceinline__ void store_scores(std::uint32_t tile, const Scores<MB, NB>& s, int row,
                                             int chunk) {
  static_assert((NB & (NB - 1)) == 0, "chunks are told apart by their own bits");
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const std::uint32_t first =
      tile + Swizzle<Keys>::offset(row + (lane >> 2), chunk) + 4 * static_cast<std::uint32_t>(lane & 3);
#pragma unroll
  for (int n = 0; n < NB; ++n) {
    const std::uint32_t column = first ^ static_cast<std::uint32_t>(n << 4);
#pragma unroll
    for (int m = 0; m < MB; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        store_shared(column + static_cast<std::uint32_t>((m * 16 + h * 8) * Swizzle<Keys>::pitch),
                     pack<T>(s.at[m][n][2 * h], s.at[m][n][2 * h + 1]));
  }
}

/// The softmax of backward: P = exp(S - lse), which is zero where the row has no sum.
template <int MB, int NB>
__device__ __forceinline__ void probabilities(Scores<MB, NB>& s, const float* lse, float scale_log2,
                                              int row) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
  for (int m = 0; m < MB; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float x = lse[row + m * 16 + h * 8 + (lane >> 2)];
      const float shift = x == minus_infinity() ? x : -x * log2_e;
#pragma unroll
      for (int n = 0; n < NB; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& y = s.at[m][n][2 * h + e];
          y = exp2_fast(__fmaf_rn(y, scale_log2, shift));
        }
    }
}

/// dS = P * (dP - delta); `dp` becomes dS.
template <int MB, int NB>
__device__ __forceinline__ void score_gradients(Scores<MB, NB>& dp, const Scores<MB, NB>& p,
                                                const float* delta, int row) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
  for (int m = 0; m < MB; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float x = delta[row + m * 16 + h * 8 + (lane >> 2)];
#pragma unroll
      for (int n = 0; n < NB; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& y = dp.at[m][n][2 * h + e];
          y = p.at[m][n][2 * h + e] * (y - x);
        }
    }
}

/// Whether two segments mean the same keys by the tile's rows.
__device__ __forceinline__ bool same_keys(const QuerySegment& a, const QuerySegment& b) {
  return a.shift == b.shift && a.load_begin == b.load_begin && a.load_end == b.load_end;
}

/// The keys (or values) of a tile of gradient rows; rows that are no keys become zero.
template <int Rows, int D, int Threads>
__device__ __forceinline__ void load_between(std::uint32_t tile, const Strided& from, int width, int batch,
                                             int head, int row, const QuerySegment& s) {
  constexpr int per_row = D / 8;
  for (int at = static_cast<int>(threadIdx.x); at < Rows * per_row; at += Threads) {
    const int r = at / per_row, chunk = at % per_row;
    const bool inside = row + r >= s.load_begin && row + r < s.load_end && chunk < (width + 7) / 8;
    copy16(tile + Swizzle<D>::offset(r, chunk), half_row(from, batch, head, row + r + s.shift) + chunk * 16,
           inside ? 16 : 0);
  }
}

/// lse and delta of a tile of rows; rows beyond the tile's end have no sum.
template <int Rows>
__device__ __forceinline__ void load_row_values(char* to, const Strided& lse, const Strided& delta, int batch,
                                                int head, int row, int end) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= Rows) return;
  float* at = reinterpret_cast<float*>(to) + i;
  if (row + i < end) {
    copy4(shared_address(at), row_of<float>(lse, batch, head, row + i));
    copy4(shared_address(at + Rows), row_of<float>(delta, batch, head, row + i));
  } else {
    at[0] = minus_infinity();
    at[Rows] = 0;
  }
}

/// Adds a warp's block of dQ, times `factor`, to rows that other blocks of the grid add to as well. With
/// `fours` the rows lie on boundaries of 16 bytes and end with a multiple of 16 columns: neighbouring lanes
/// exchange halves, so that each adds four floats, and a row's 64 bytes are one piece.
template <bool fours, int MB, int NB>
__device__ __forceinline__ void add_block(const float (&block)[MB][NB][4], const Strided& to, float factor,
                                          const ResultPlace& place) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int first = place.row + (lane >> 2);
  const bool odd = (lane & 1) != 0;
  const int column = place.column + (fours ? 2 * (lane & 2) + (odd ? 8 : 0) : 2 * (lane & 3));
  float* out = row_of<float>(to, place.batch, place.head, first) + column;
  const i64 step = 8 * to.row;
  unroll<2 * MB>([&](auto row) {
    constexpr int i = decltype(row)::value;
    const int width = first + 8 * i < place.row_end ? place.width - column : 0;
    float* const at = out + i * step;
    const auto pair = [&](int n) {
      return float2{block[i / 2][n][i % 2 * 2] * factor, block[i / 2][n][i % 2 * 2 + 1] * factor};
    };
    if constexpr (fours) {
      unroll<NB / 2>([&](auto blocks) {
        constexpr int n = 2 * decltype(blocks)::value;
        const float2 left = pair(n), right = pair(n + 1), given = odd ? left : right;
        const float2 got = {__shfl_xor_sync(~0u, given.x, 1), __shfl_xor_sync(~0u, given.y, 1)};
#if __CUDA_ARCH__ >= 900
        add_four<n * 8>(at, odd ? got : left, odd ? right : got, n * 8 < width);
#else
        add_pair<n * 8>(at, odd ? got : left, n * 8 < width);
        add_pair<n * 8 + 2>(at, odd ? right : got, n * 8 < width);
#endif
      });
    } else {
      unroll<NB>([&](auto blocks) {
        constexpr int n = decltype(blocks)::value;
        add_pair<n * 8>(at, pair(n), n * 8 < width);
      });
    }
  });
}

/// Scores of backward with everything beside the band: `s` becomes P times the softcap's slope, and P without
/// what dropout drops goes to `store`.
template <class Tr, class Store>
__device__ __forceinline__ ElementBits general_probabilities(Scores<Tr::MB, Tr::NB>& s, const Terms& t,
                                                             const DeviceSlice& band, TilePlace place,
                                                             int head, int batch, bool masked,
                                                             const float* lse, int row, const Store& store) {
  Scores<Tr::MB, Tr::NB> slopes;
  ElementBits kept = ~ElementBits{0};
  apply_logit_terms(s, &slopes, t, band, place, head);
  if (masked) hide_band(s, band, place, minus_infinity());
  if (t.admitted != nullptr)
    hide_unset(s, admitted_pairs<Tr::MB, Tr::NB>(t, band, place, head), minus_infinity());
  probabilities(s, lse, log2_e, row);
  if (t.dropout) {
    kept = kept_pairs<Tr::MB, Tr::NB>(t, band, place, head, batch);
    Scores<Tr::MB, Tr::NB> left = s;
    hide_unset(left, kept, 0.f);
    scale_all(left, t.keep);
    store(left);
  } else {
    store(s);
  }
#pragma unroll
  for (int m = 0; m < Tr::MB; ++m)
#pragma unroll
    for (int n = 0; n < Tr::NB; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) s.at[m][n][e] *= slopes.at[m][n][e];
  return kept;
}

/// dP of dropped pairs is zero, of others scaled.
template <int MB, int NB>
__device__ __forceinline__ void drop_gradients(Scores<MB, NB>& dp, const Terms& t, ElementBits kept) {
  if (!t.dropout) return;
  hide_unset(dp, kept, 0.f);
  scale_all(dp, t.keep);
}

template <class Tr>
__global__ __launch_bounds__(Tr::threads, 1) void backward_kernel(const __grid_constant__ BackwardParams p) {
  using T = typename Tr::T;
  extern __shared__ __align__(128) char shared[];
  const TileEntry tile = p.tiles[blockIdx.x];
  const int kv_head = QueryWalk<Tr::keys, Tr::terms>::kv_head(p), batch = static_cast<int>(blockIdx.z);
  const int warp = static_cast<int>(threadIdx.x) >> 5;
  char* const stages_at = shared + Tr::k_bytes + Tr::v_bytes + 2 * Tr::p_bytes;
  const std::uint32_t k_at = shared_address(shared), v_at = k_at + Tr::k_bytes;
  const std::uint32_t p_at = v_at + Tr::v_bytes, ds_at = p_at + Tr::p_bytes;
  const std::uint32_t q_at = shared_address(stages_at), o_at = q_at + Tr::q_bytes;

  // Warps that share keys of the scores are those that share these keys' gradients, and warps 0-3 and 4-7 are
  // those that share query rows: they wait for each other, not for all.
  const int score_row = warp / Tr::score_warps_n * 16 * Tr::MB, key_warp = warp % Tr::score_warps_n;
  const int score_chunk = key_warp * Tr::NB, key_row = key_warp * 32, column_warp = warp / Tr::score_warps_n;
  const int query_row = warp / Tr::query_warps_n * 16 * Tr::QB, query_warp = warp % Tr::query_warps_n;

  const auto load_queries = [&](const QueryWalk<Tr::keys, Tr::terms>& w, std::uint32_t stage) {
    load_tile<Tr::rows, Tr::Dk, Tr::threads>(q_at + stage, half_row(p.q, batch, w.head, w.q), p.q.row * 2,
                                             w.end - w.q, (p.dqk + 7) / 8);
    load_tile<Tr::rows, Tr::Dv, Tr::threads>(o_at + stage, half_row(p.d_o, batch, w.head, w.q), p.d_o.row * 2,
                                             w.end - w.q, (p.dv + 7) / 8);
    load_row_values<Tr::rows>(stages_at + stage + Tr::q_bytes + Tr::o_bytes, p.lse, p.delta, batch, w.head,
                              w.q, w.end);
  };
  const auto load_keys = [&](const QuerySegment& s) {
    load_between<Tr::keys, Tr::Dk, Tr::threads>(k_at, p.k, p.dqk, batch, kv_head, tile.row, s);
    load_between<Tr::keys, Tr::Dv, Tr::threads>(v_at, p.v, p.dv, batch, kv_head, tile.row, s);
  };

  QueryWalk<Tr::keys, Tr::terms> next(p);
  bool more = next.advance(p);
  if (more) load_queries(next, 0);
  float dk[Tr::KB][Tr::DkB][4] = {}, dv[Tr::KB][Tr::DvB][4] = {};
  int loaded = -1;
  std::uint32_t stage = 0;
  while (more) {
    const int q = next.q, q_end = next.end, head = next.head, segment = next.segment;
    if (segment != loaded) {
      if (loaded < 0 || !same_keys(p.segments[segment], p.segments[loaded])) {
        __syncthreads();
        load_keys(p.segments[segment]);
      }
      loaded = segment;
    }
    copies_wait();
    __syncthreads();

    Scores<Tr::MB, Tr::NB> s, dp;
    s.clear(), dp.clear();
    multiply_rows<T, Tr::Dk>(s.at, LaneAddress<Tr::Dk>(q_at, Blocks::down, score_row, 0), stage,
                             LaneAddress<Tr::Dk>(k_at, Blocks::along, score_chunk * 8, 0));
    multiply_rows<T, Tr::Dv>(dp.at, LaneAddress<Tr::Dv>(o_at, Blocks::down, score_row, 0), stage,
                             LaneAddress<Tr::Dv>(v_at, Blocks::along, score_chunk * 8, 0));
    // The next tile is asked for while the tensor cores are busy.
    const bool masked = next.masked;
    more = next.advance(p);
    if (more && p.stages == 2) load_queries(next, Tr::stage_bytes - stage);

    const float* lse = reinterpret_cast<const float*>(stages_at + stage + Tr::q_bytes + Tr::o_bytes);
    const auto store = [&](const Scores<Tr::MB, Tr::NB>& x) {
      store_scores<Tr::keys, Tr::MB, Tr::NB, T>(p_at, x, score_row, score_chunk);
    };
    const auto place = [&] {
      return TilePlace{q + score_row, tile.row + p.segments[segment].shift + score_chunk * 8};
    };
    const auto band = [&]() -> const DeviceSlice& { return p.slices[p.segments[segment].slice]; };
    if constexpr (Tr::terms) {
      const ElementBits kept =
          general_probabilities<Tr>(s, p.terms, band(), place(), head, batch, masked, lse, score_row, store);
      drop_gradients(dp, p.terms, kept);
    } else {
      if (masked) hide_band(s, band(), place(), minus_infinity());
      probabilities(s, lse, p.terms.scale_log2, score_row);
      store(s);
    }
    score_gradients(dp, s, lse + Tr::rows, score_row);
    store_scores<Tr::keys, Tr::MB, Tr::NB, T>(ds_at, dp, score_row, score_chunk);

    wait_for_group(1 + key_warp, 32 * Tr::score_warps_m);
    multiply_transposed<T, Tr::rows>(
        dv, LaneAddress<Tr::keys>(p_at, Blocks::along, 0, key_row / 8),
        LaneAddress<Tr::Dv, (Tr::DvB & (Tr::DvB - 1)) == 0>(o_at, Blocks::down, 0, column_warp * Tr::DvB),
        stage);
    multiply_transposed<T, Tr::rows>(
        dk, LaneAddress<Tr::keys>(ds_at, Blocks::along, 0, key_row / 8),
        LaneAddress<Tr::Dk, (Tr::DkB & (Tr::DkB - 1)) == 0>(q_at, Blocks::down, 0, column_warp * Tr::DkB),
        stage);
    if (p.add_dq) {
      wait_for_group(1 + Tr::score_warps_n + warp / 4, 128);
      float dq[Tr::QB][Tr::DqB][4] = {};
      multiply_plain<T, Tr::keys>(
          dq, LaneAddress<Tr::keys>(ds_at, Blocks::down, query_row, 0),
          LaneAddress<Tr::Dk, (Tr::DqB & (Tr::DqB - 1)) == 0>(k_at, Blocks::down, 0, query_warp * Tr::DqB));
      const ResultPlace at{batch, head, q + query_row, q_end, query_warp * Tr::DqB * 8, (p.dqk + 1) / 2 * 2};
      if (p.dq_fours)
        add_block<true>(dq, p.dq, p.terms.scale, at);
      else
        add_block<false>(dq, p.dq, p.terms.scale, at);
    }

    if (p.stages == 2) {
      stage = Tr::stage_bytes - stage;
    } else if (more) {
      __syncthreads();
      load_queries(next, 0);
    }
  }
  write_block<T>(dk, p.dk, p.overwrite, p.terms.scale,
                 {batch, kv_head, tile.row + key_row, p.dk_rows, column_warp * Tr::DkB * 8, p.dqk});
  write_block<T>(dv, p.dv_out, p.overwrite, 1.f,
                 {batch, kv_head, tile.row + key_row, p.dk_rows, column_warp * Tr::DvB * 8, p.dv});
}

template <class Tr>
void launch_backward_of(BackwardParams p, cudaStream_t stream) {
  p.stages = Tr::shared_bytes(2) <= p.shared_per_block ? 2 : 1;
  const int bytes = Tr::shared_bytes(p.stages);
  static SharedMemoryLimit limit;
  limit.raise(backward_kernel<Tr>, p.device, bytes);
  const dim3 grid(static_cast<unsigned>(p.tile_count),
                  static_cast<unsigned>((p.head_end - 1) / p.group + 1 - p.head_begin / p.group),
                  static_cast<unsigned>(p.batch));
  backward_kernel<Tr><<<grid, Tr::threads, static_cast<std::size_t>(bytes), stream>>>(p);
  device::check_launch("attention backward");
}

template <int Dk, int Dv, bool terms>
void launch_backward(BackwardParams p, DType io, cudaStream_t stream) {
  if (io == DType::bf16)
    launch_backward_of<BackwardTraits<Bf16, Dk, Dv, terms>>(p, stream);
  else
    launch_backward_of<BackwardTraits<Fp16, Dk, Dv, terms>>(p, stream);
}

}  // namespace usp::kernels::mma
