// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../tiles/strided.hpp"
#include "../tiles/tables.hpp"

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>

/// What the mma kernels are launched with.
namespace usp::kernels::mma {

using namespace tiles;

struct Terms {
  float scale = 1, scale_log2 = 1;
  float softcap = 0;
  const double* slopes = nullptr;
  bool dropout = false;
  std::uint32_t threshold = 0;
  float keep = 1;  ///< 1 / (1 - dropout)
  std::uint64_t seed = 0;
  i64 block_q = 0, block_k = 0, block_rows = 0, block_columns = 0;
  const std::uint8_t* admitted = nullptr;
};

struct Common {
  Strided q, k, v;
  const TileEntry* tiles = nullptr;
  const DeviceSlice* slices = nullptr;
  int tile_count = 0, q_rows = 0;
  int head_begin = 0, head_end = 0, group = 1, batch = 1;
  int dqk = 0, dv = 0;                          ///< true widths
  int stages = 1;                               ///< copies of the streamed tiles; chosen at launch
  int shared_per_block = 0, shared_per_sm = 0;  ///< bytes the device has
  int device = 0;                               ///< current at launch
  bool overwrite = false;
  Terms terms;
};

struct ForwardParams : Common {
  const KeySegment* segments = nullptr;
  Strided o, lse;
  const double* sink = nullptr;
};

struct BackwardParams : Common {
  const QuerySegment* segments = nullptr;
  Strided d_o, lse, delta, dq, dk, dv_out;
  int dk_rows = 0;
  bool add_dq =
      true;  ///< by atomics, to dq of even width and aligned pairs; otherwise another kernel makes dq
  bool dq_fours = false;  ///< rows of dq are whole runs of 16 floats on boundaries of 16 bytes
};

struct QueryGradParams : Common {
  const KeySegment* segments = nullptr;
  Strided d_o, lse, delta, dq;
};

/// Rows of a tile that stays.
constexpr int forward_rows(int dv, bool terms) {
  return terms || dv > 128 ? 64 : 128;
}
constexpr int backward_keys(int dqk, bool terms) {
  return terms || dqk > 128 ? 64 : 128;
}
inline constexpr int query_grad_rows = 64;

/// Bytes of shared memory that a block asks for.
constexpr int forward_shared_bytes(int dk, int dv, bool terms, int stages) {
  return 2 * (forward_rows(dv, terms) * dk + stages * streamed_rows * (dk + dv));
}
constexpr int backward_shared_bytes(int dk, int dv, bool terms, int stages) {
  const int keys = backward_keys(dk, terms);
  return 2 * (keys * (dk + dv) + 2 * streamed_rows * keys) +
         stages * (2 * streamed_rows * (dk + dv) + 8 * streamed_rows);
}
constexpr int query_grad_shared_bytes(int d) {
  return 8 * query_grad_rows * d + 8 * query_grad_rows;
}

/// Padded head dims are template arguments; `terms` admits everything beside the band of positions.
template <int Dk, int Dv, bool terms>
void launch_forward(ForwardParams p, DType io, cudaStream_t stream);
template <int Dk, int Dv, bool terms>
void launch_backward(BackwardParams p, DType io, cudaStream_t stream);
/// dq alone, without atomics.
template <int D>
void launch_query_grad(const QueryGradParams& p, DType io, cudaStream_t stream);

}  // namespace usp::kernels::mma
