// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../tiles/launch.cuh"
#include "tensor.cuh"
#include "walk.cuh"

namespace usp::kernels::mma {

/// Query tiles stay, keys and values stream by in tiles of 64 rows. Each warp owns whole query rows: scores,
/// probabilities and the sums of its rows never leave its registers.
template <class T_, int Dk_, int Dv_, bool terms_>
struct ForwardTraits {
  using T = T_;
  static constexpr int Dk = Dk_, Dv = Dv_;
  static constexpr bool terms = terms_;
  static constexpr int rows = forward_rows(Dv, terms), keys = streamed_rows;
  static constexpr int warps = 4, threads = warps * 32;
  static constexpr int MB = rows / (16 * warps), NB = keys / 8, OB = Dv / 8;
  /// Query fragments are read from shared memory once where registers hold them.
  static constexpr bool queries_in_registers = MB == 2 ? Dk <= 64 : Dk <= 128;
  static constexpr int blocks_per_sm = 2;
  static constexpr int q_bytes = rows * Dk * 2, k_bytes = keys * Dk * 2, v_bytes = keys * Dv * 2;
  static constexpr int shared_bytes(int stages) { return forward_shared_bytes(Dk, Dv, terms, stages); }
};

/// Running softmax of a warp's rows: maximum (log2 units), this thread's part of the sum, and sum P V.
template <class Tr>
struct RowState {
  float top[Tr::MB][2], sum[Tr::MB][2];
  float o[Tr::MB][Tr::OB][4];
};

template <class Tr>
__device__ __forceinline__ void begin_rows(RowState<Tr>& state, const ForwardParams& p, int batch, int head,
                                           int first_row) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
  for (int m = 0; m < Tr::MB; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row + m * 16 + h * 8 + (lane >> 2);
      float lse = minus_infinity();
      if (p.overwrite) {
        if (p.sink != nullptr) lse = static_cast<float>(p.sink[head]);
      } else if (row < p.q_rows) {
        lse = *row_of<float>(p.lse, batch, head, row);
      }
      const bool holds = lse != minus_infinity();
      state.top[m][h] = lse * log2_e;
      state.sum[m][h] = holds && (lane & 3) == 0 ? 1.f : 0.f;
#pragma unroll
      for (int n = 0; n < Tr::OB; ++n) {
        float2 x = {0.f, 0.f};
        if (!p.overwrite && holds)
          x = load_pair(row_of<float>(p.o, batch, head, row), n * 8 + 2 * (lane & 3), p.dv, p.o.pairs);
        state.o[m][n][2 * h] = x.x, state.o[m][n][2 * h + 1] = x.y;
      }
    }
}

/// Writes what the rows have become; a carried row that saw nothing is left alone.
template <class Tr>
__device__ __forceinline__ void end_rows(RowState<Tr>& state, const ForwardParams& p, int batch, int head,
                                         int first_row) {
  using T = typename Tr::T;
  const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
  for (int m = 0; m < Tr::MB; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row + m * 16 + h * 8 + (lane >> 2);
      const bool inside = row < p.q_rows;
      float* lse = row_of<float>(p.lse, batch, head, inside ? row : 0);
      float before = minus_infinity();
      if (!p.overwrite)
        before = *lse;
      else if (p.sink != nullptr)
        before = static_cast<float>(p.sink[head]);
      // The four lanes of a row have all read before one of them writes.
      float sum = state.sum[m][h];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      if (!inside) continue;
      const float top = state.top[m][h];
      // Only a row that saw nothing still has the maximum and the sum that it began with.
      const bool poison_byte = before * log2_e == top && sum == (before == minus_infinity() ? 0.f : 1.f);
      if (poison_byte && !p.overwrite) continue;
      const float inverse = sum > 0 ? 1.f / sum : 0.f;
      if ((lane & 3) == 0) *lse = poison_byte ? before : (top + log2f(sum)) * ln_2;
#pragma unroll
      for (int n = 0; n < Tr::OB; ++n) {
        const int column = n * 8 + 2 * (lane & 3);
        const float2 x = {state.o[m][n][2 * h] * inverse, state.o[m][n][2 * h + 1] * inverse};
        if (p.o.type == DType::fp32)
          store_pair(row_of<float>(p.o, batch, head, row), column, p.dv, p.o.pairs, x);
        else
          store_rounded<T>(row_of<typename T::type>(p.o, batch, head, row), column, p.dv, p.o.pairs, x);
      }
    }
}

/// Scores become probabilities (relative to the running maximum). The maximum moves, and the sums with it,
/// only when a score exceeds it by a factor of 2^8: the quotient is the same, and the sums are rarely
/// rescaled.
template <class Tr>
__device__ __forceinline__ void online_softmax(Scores<Tr::MB, Tr::NB>& s, RowState<Tr>& state,
                                               float scale_log2) {
  constexpr float slack = 8;
  float tops[Tr::MB][2];
  bool exceeds = false;
#pragma unroll
  for (int m = 0; m < Tr::MB; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = fmaxf(s.at[m][0][2 * h], s.at[m][0][2 * h + 1]);
#pragma unroll
      for (int n = 1; n < Tr::NB; ++n) top = fmaxf(top, fmaxf(s.at[m][n][2 * h], s.at[m][n][2 * h + 1]));
      tops[m][h] = top * scale_log2;
      exceeds |= tops[m][h] > state.top[m][h] + slack;
    }
  if (__any_sync(~0u, exceeds)) {
#pragma unroll
    for (int m = 0; m < Tr::MB; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float top = fmaxf(tops[m][h], __shfl_xor_sync(~0u, tops[m][h], 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        top = fmaxf(top, state.top[m][h]);
        const float factor = top == minus_infinity() ? 1.f : exp2_fast(state.top[m][h] - top);
        state.top[m][h] = top;
        state.sum[m][h] *= factor;
#pragma unroll
        for (int n = 0; n < Tr::OB; ++n) state.o[m][n][2 * h] *= factor, state.o[m][n][2 * h + 1] *= factor;
      }
  }
#pragma unroll
  for (int m = 0; m < Tr::MB; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float top = state.top[m][h] == minus_infinity() ? 0.f : state.top[m][h];
      float sum = 0;
#pragma unroll
      for (int n = 0; n < Tr::NB; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s.at[m][n][2 * h + e];
          x = exp2_fast(__fmaf_rn(x, scale_log2, -top));
          sum += x;
        }
      state.sum[m][h] += sum;
    }
}

/// scores = Q K^T for a warp's rows.
template <class Tr, class Queries>
__device__ __forceinline__ void multiply_queries(Scores<Tr::MB, Tr::NB>& s, const Queries& queries,
                                                 const LaneAddress<Tr::Dk>& keys, std::uint32_t keys_at) {
  s.clear();
#pragma unroll
  for (int d = 0; d < Tr::Dk / 16; ++d) {
    std::uint32_t a[Tr::MB][4];
    queries.fragments(a, d);
#pragma unroll
    for (int n = 0; n < Tr::NB / 2; ++n) {
      std::uint32_t b[4];
      load_fragment(b, keys_at + keys.at(n * 16, 2 * d));
#pragma unroll
      for (int m = 0; m < Tr::MB; ++m) {
        multiply<typename Tr::T>(s.at[m][2 * n], a[m], b[0], b[1]);
        multiply<typename Tr::T>(s.at[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// o += P V; the accumulator layout of P is the operand layout.
template <class Tr>
__device__ __forceinline__ void multiply_values(RowState<Tr>& state, const Scores<Tr::MB, Tr::NB>& s,
                                                const LaneAddress<Tr::Dv>& values, std::uint32_t values_at) {
  using T = typename Tr::T;
#pragma unroll
  for (int k = 0; k < Tr::keys / 16; ++k) {
    std::uint32_t a[Tr::MB][4];
#pragma unroll
    for (int m = 0; m < Tr::MB; ++m) {
      const auto &left = s.at[m][2 * k], &right = s.at[m][2 * k + 1];
      a[m][0] = pack<T>(left[0], left[1]), a[m][1] = pack<T>(left[2], left[3]);
      a[m][2] = pack<T>(right[0], right[1]), a[m][3] = pack<T>(right[2], right[3]);
    }
#pragma unroll
    for (int n = 0; n < Tr::OB / 2; ++n) {
      std::uint32_t b[4];
      load_fragment_transposed(b, values_at + values.at(k * 16, 2 * n));
#pragma unroll
      for (int m = 0; m < Tr::MB; ++m) {
        multiply<T>(state.o[m][2 * n], a[m], b[0], b[1]);
        multiply<T>(state.o[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// A warp's query fragments: kept, or read from shared memory each time.
template <int MB, int D, bool kept>
class QueryFragments {
 public:
  __device__ __forceinline__ explicit QueryFragments(const LaneAddress<D>& lane) : lane_(lane) {}
  __device__ __forceinline__ void read() {
    if constexpr (kept) {
#pragma unroll
      for (int d = 0; d < D / 16; ++d)
#pragma unroll
        for (int m = 0; m < MB; ++m) load_fragment(all_[d][m], lane_.at(m * 16, 2 * d));
    }
  }
  __device__ __forceinline__ void fragments(std::uint32_t (&a)[MB][4], int d) const {
#pragma unroll
    for (int m = 0; m < MB; ++m)
      if constexpr (kept) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[m][i] = all_[d][m][i];
      } else {
        load_fragment(a[m], lane_.at(m * 16, 2 * d));
      }
  }

 private:
  LaneAddress<D> lane_;
  std::uint32_t all_[kept ? D / 16 : 1][MB][4];
};

template <class Tr>
__global__ __launch_bounds__(Tr::threads,
                             Tr::blocks_per_sm) void forward_kernel(const __grid_constant__ ForwardParams p) {
  extern __shared__ __align__(128) char shared[];
  const TileEntry tile = p.tiles[blockIdx.x];
  const int head = p.head_begin + static_cast<int>(blockIdx.y), batch = static_cast<int>(blockIdx.z);
  const int kv_head = head / p.group, warp = static_cast<int>(threadIdx.x) >> 5;
  const int first_row = tile.row + warp * 16 * Tr::MB;
  const std::uint32_t q_at = shared_address(shared), k_at = q_at + Tr::q_bytes;
  constexpr std::uint32_t stage_bytes = Tr::k_bytes + Tr::v_bytes;

  const auto load_keys = [&](const KeyWalk<Tr::rows, Tr::terms>& w, std::uint32_t at) {
    load_tile<Tr::keys, Tr::Dk, Tr::threads>(at, half_row(p.k, batch, kv_head, w.k), p.k.row * 2, w.end - w.k,
                                             (p.dqk + 7) / 8);
    load_tile<Tr::keys, Tr::Dv, Tr::threads>(at + Tr::k_bytes, half_row(p.v, batch, kv_head, w.k),
                                             p.v.row * 2, w.end - w.k, (p.dv + 7) / 8);
  };
  KeyWalk<Tr::rows, Tr::terms> next(tile);
  bool more = next.advance(p, tile.row, head);
  if (more) {
    load_tile<Tr::rows, Tr::Dk, Tr::threads>(q_at, half_row(p.q, batch, head, tile.row), p.q.row * 2,
                                             p.q_rows - tile.row, (p.dqk + 7) / 8);
    load_keys(next, k_at);
  }

  RowState<Tr> state;
  begin_rows(state, p, batch, head, first_row);
  QueryFragments<Tr::MB, Tr::Dk, Tr::queries_in_registers> queries(
      {q_at, Blocks::down, warp * 16 * Tr::MB, 0});
  const LaneAddress<Tr::Dk> key_lane(k_at, Blocks::along, 0, 0);
  const LaneAddress<Tr::Dv> value_lane(k_at + Tr::k_bytes, Blocks::down, 0, 0);
  std::uint32_t stage = 0;
  for (bool first = true; more; first = false) {
    const TilePlace place{first_row, next.k};
    const int slice = next.slice;
    const bool masked = next.masked();
    more = next.advance(p, tile.row, head);
    copies_wait();
    __syncthreads();
    if (more && p.stages == 2) load_keys(next, k_at + (stage_bytes - stage));
    if (first) queries.read();

    Scores<Tr::MB, Tr::NB> s;
    multiply_queries<Tr>(s, queries, key_lane, stage);
    if constexpr (Tr::terms) {
      const DeviceSlice& band = p.slices[slice];
      apply_logit_terms<Tr::MB, Tr::NB>(s, nullptr, p.terms, band, place, head);
      if (masked) hide_band(s, band, place, minus_infinity());
      if (p.terms.admitted != nullptr)
        hide_unset(s, admitted_pairs<Tr::MB, Tr::NB>(p.terms, band, place, head), minus_infinity());
      online_softmax(s, state, log2_e);
      if (p.terms.dropout) {
        const ElementBits kept = kept_pairs<Tr::MB, Tr::NB>(p.terms, band, place, head, batch);
        hide_unset(s, kept, 0.f);
        scale_all(s, p.terms.keep);
      }
    } else {
      if (masked) hide_band(s, p.slices[slice], place, minus_infinity());
      online_softmax(s, state, p.terms.scale_log2);
    }
    multiply_values(state, s, value_lane, stage);

    if (p.stages == 2) {
      stage = stage_bytes - stage;
    } else if (more) {
      __syncthreads();
      load_keys(next, k_at);
    }
  }
  end_rows(state, p, batch, head, first_row);
}

template <class Tr>
void launch_forward_of(ForwardParams p, cudaStream_t stream) {
  // The next keys travel during this tile's work where the other block of the multiprocessor leaves room for
  // them.
  constexpr int reserved = 1024;
  p.stages = 2 * (Tr::shared_bytes(2) + reserved) <= p.shared_per_sm ? 2 : 1;
  const int bytes = Tr::shared_bytes(p.stages);
  static SharedMemoryLimit limit;
  limit.raise(forward_kernel<Tr>, p.device, bytes);
  const dim3 grid(static_cast<unsigned>(p.tile_count), static_cast<unsigned>(p.head_end - p.head_begin),
                  static_cast<unsigned>(p.batch));
  forward_kernel<Tr><<<grid, Tr::threads, static_cast<std::size_t>(bytes), stream>>>(p);
  device::check_launch("attention forward");
}

template <int Dk, int Dv, bool terms>
void launch_forward(ForwardParams p, DType io, cudaStream_t stream) {
  if (io == DType::bf16)
    launch_forward_of<ForwardTraits<Bf16, Dk, Dv, terms>>(p, stream);
  else
    launch_forward_of<ForwardTraits<Fp16, Dk, Dv, terms>>(p, stream);
}

}  // namespace usp::kernels::mma
