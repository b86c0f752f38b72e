// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backward.cuh"

namespace usp::kernels::mma {

/// dQ alone, for gradients that repeat bit for bit: a tile of query rows stays with its dQ, keys and values
/// stream by. Each warp owns 16 query rows; dS is an operand right from its registers.
template <class T_, int D_>
struct QueryGradTraits {
  using T = T_;
  static constexpr int D = D_, Dk = D_, Dv = D_;
  static constexpr int rows = query_grad_rows, keys = streamed_rows, warps = 4, threads = warps * 32;
  static constexpr int MB = 1, NB = keys / 8;
  static constexpr int tile_bytes = rows * D * 2;
  static constexpr int shared_bytes = query_grad_shared_bytes(D);
};

/// acc += A B with A packed from what a warp holds; B is [depth][columns].
template <class T, int depth, int NB>
__device__ __forceinline__ void multiply_held(float (&acc)[1][NB][4], const Scores<1, depth / 8>& a,
                                              const LaneAddress<NB * 8>& b_lane) {
#pragma unroll
  for (int k = 0; k < depth / 16; ++k) {
    const auto &left = a.at[0][2 * k], &right = a.at[0][2 * k + 1];
    const std::uint32_t packed[4] = {pack<T>(left[0], left[1]), pack<T>(left[2], left[3]),
                                     pack<T>(right[0], right[1]), pack<T>(right[2], right[3])};
#pragma unroll
    for (int n = 0; n < NB / 2; ++n) {
      std::uint32_t b[4];
      load_fragment_transposed(b, b_lane.at(k * 16, 2 * n));
      multiply<T>(acc[0][2 * n], packed, b[0], b[1]);
      multiply<T>(acc[0][2 * n + 1], packed, b[2], b[3]);
    }
  }
}

template <class Tr>
__global__ __launch_bounds__(Tr::threads) void query_grad_kernel(const __grid_constant__ QueryGradParams p) {
  using T = typename Tr::T;
  extern __shared__ __align__(128) char shared[];
  const TileEntry tile = p.tiles[blockIdx.x];
  const int head = p.head_begin + static_cast<int>(blockIdx.y), batch = static_cast<int>(blockIdx.z);
  const int kv_head = head / p.group, row = static_cast<int>(threadIdx.x) >> 5 << 4;
  const std::uint32_t q_at = shared_address(shared), o_at = q_at + Tr::tile_bytes,
                      k_at = o_at + Tr::tile_bytes, v_at = k_at + Tr::tile_bytes;
  const float* lse = reinterpret_cast<const float*>(shared + 4 * Tr::tile_bytes);

  KeyWalk<Tr::rows, true> walk(tile);
  float dq[1][Tr::D / 8][4] = {};
  for (bool first = true; walk.advance(p, tile.row, head); first = false) {
    __syncthreads();
    if (first) {
      load_tile<Tr::rows, Tr::D, Tr::threads>(q_at, half_row(p.q, batch, head, tile.row), p.q.row * 2,
                                              p.q_rows - tile.row, (p.dqk + 7) / 8);
      load_tile<Tr::rows, Tr::D, Tr::threads>(o_at, half_row(p.d_o, batch, head, tile.row), p.d_o.row * 2,
                                              p.q_rows - tile.row, (p.dv + 7) / 8);
      load_row_values<Tr::rows>(shared + 4 * Tr::tile_bytes, p.lse, p.delta, batch, head, tile.row, p.q_rows);
    }
    load_tile<Tr::keys, Tr::D, Tr::threads>(k_at, half_row(p.k, batch, kv_head, walk.k), p.k.row * 2,
                                            walk.end - walk.k, (p.dqk + 7) / 8);
    load_tile<Tr::keys, Tr::D, Tr::threads>(v_at, half_row(p.v, batch, kv_head, walk.k), p.v.row * 2,
                                            walk.end - walk.k, (p.dv + 7) / 8);
    copies_wait();
    __syncthreads();

    const TilePlace place{tile.row + row, walk.k};
    Scores<1, Tr::NB> s, dp;
    s.clear(), dp.clear();
    multiply_rows<T, Tr::D>(s.at, LaneAddress<Tr::D>(q_at, Blocks::down, row, 0), 0,
                            LaneAddress<Tr::D>(k_at, Blocks::along, 0, 0));
    const ElementBits kept = general_probabilities<Tr>(s, p.terms, p.slices[walk.slice], place, head, batch,
                                                       walk.masked(), lse, row, [](const auto&) {});
    multiply_rows<T, Tr::D>(dp.at, LaneAddress<Tr::D>(o_at, Blocks::down, row, 0), 0,
                            LaneAddress<Tr::D>(v_at, Blocks::along, 0, 0));
    drop_gradients(dp, p.terms, kept);
    score_gradients(dp, s, lse + Tr::rows, row);
    multiply_held<T, Tr::keys>(dq, dp, LaneAddress<Tr::D>(k_at, Blocks::down, 0, 0));
  }
  write_block<T>(dq, p.dq, p.overwrite, p.terms.scale, {batch, head, tile.row + row, p.q_rows, 0, p.dqk});
}

template <class Tr>
void launch_query_grad_of(const QueryGradParams& p, cudaStream_t stream) {
  static SharedMemoryLimit limit;
  limit.raise(query_grad_kernel<Tr>, p.device, Tr::shared_bytes);
  const dim3 grid(static_cast<unsigned>(p.tile_count), static_cast<unsigned>(p.head_end - p.head_begin),
                  static_cast<unsigned>(p.batch));
  query_grad_kernel<Tr><<<grid, Tr::threads, Tr::shared_bytes, stream>>>(p);
  device::check_launch("attention gradient of the queries");
}

template <int D>
void launch_query_grad(const QueryGradParams& p, DType io, cudaStream_t stream) {
  if (io == DType::bf16)
    launch_query_grad_of<QueryGradTraits<Bf16, D>>(p, stream);
  else
    launch_query_grad_of<QueryGradTraits<Fp16, D>>(p, stream);
}

}  // namespace usp::kernels::mma
