// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../tiles/strided.hpp"
#include "../tiles/tables.hpp"
#include "tile_rows.hpp"

#include "usp/kernels/gate.hpp"

#include <cstdint>
#include <cuda.h>
#include <cuda_runtime_api.h>

/// What the hopper kernels are launched with.
namespace usp::kernels::hopper {

using namespace tiles;

/// Heads whose K and V (forward) or Q, dO and dQ (backward) fill this much are worked on together, so that
/// they stay in L2.
inline constexpr i64 section_bytes = i64{32} << 20, grad_section_bytes = i64{40} << 20;

/// Runs of tiles of a table at most: of each block, and what is left for the end.
inline constexpr int max_runs = max_blocks + 1;

/// Blocks of threads claim tiles of the table, one head (forward: one bundle of heads) each: run after run,
/// in a run by sections of heads, in a section in the order of the table.
struct CommonParams {
  /// (column, head, row, batch); boxes of 64 columns of one head. Keys and values: of each block, from the
  /// first KV head of the call on.
  CUtensorMap q, k[max_blocks], v[max_blocks];
  const TileEntry* tiles = nullptr;
  const DeviceSlice* slices = nullptr;
  int* next_claim = nullptr;  ///< zero at launch
  int tile_count = 0, claim_count = 0;
  int run_ends[max_runs] = {};  ///< in tiles; the last is tile_count
  std::uint32_t awaited = 0;    ///< a bit of each block that has a gate
  Gate gates[max_blocks];
  GateWatch watch;
  int heads_of_all = 0;           ///< heads times batch: query heads forward, in bundles, KV heads backward
  int section_heads = 1;          ///< of them in a section; the last section may have fewer
  int head_begin = 0, group = 1;  ///< query heads of the call, and of a KV head
  int kv_begin = 0;               ///< KV heads of the call
  int q_head_begin = 0;           ///< of the view
  int dv = 0;
  float scale_log2 = 1;      ///< of scores, or of those that a softcap has made tanh(score / softcap)
  float softcap_factor = 0;  ///< 2 log2(e) scale / softcap; 0: there is none
  bool overwrite = false;
  Strided lse;
  int device = 0, multiprocessors = 1;
};

/// Tiles of queries, by which keys stream.
struct QueryTileParams : CommonParams {
  const KeySegment* segments = nullptr;
  int heads = 0;        ///< query heads of the call, in bundles
  int bundle_log2 = 0;  ///< heads of a bundle, which share a KV head and tiles: row r of a tile is token
                        ///< r >> bundle_log2 of head r % bundle; boxes of q hold the heads of a bundle
};

struct ForwardParams : QueryTileParams {
  const double* sink = nullptr;
  Strided o;
  bool o_pieces = false;  ///< rows of o are whole aligned pieces of 16 bytes
};

/// Where dK and dV of a block go.
struct BlockGrads {
  Strided dk, dv;
  bool overwrite = false;
  bool pieces = false;  ///< rows are whole aligned pieces of 16 bytes
};

struct BackwardParams : CommonParams {
  CUtensorMap d_o;  ///< as q
  CUtensorMap dq;   ///< boxes of 32 columns of fp32
  const QuerySegment* segments = nullptr;
  BlockGrads grads[max_blocks];
  Completion completions[max_blocks];
  unsigned block_claims[max_blocks] = {};  ///< of each block, before its completion
  unsigned* ended = nullptr;               ///< by block: claims that have ended; zero at launch. Null: no
                                           ///< completion is awaited
  int head_end = 0, kv_heads = 0;
  int d_o_head_begin = 0, dq_head_begin = 0;  ///< of the views
  int dqk = 0;
  float scale = 1;
  Strided delta;
};

/// dQ alone.
struct QueryGradParams : QueryTileParams {
  CUtensorMap d_o;         ///< as q
  int d_o_head_begin = 0;  ///< of the view
  int dqk = 0;
  float scale = 1;
  Strided delta, dq;
  bool dq_pieces = false;  ///< rows of dq are whole aligned pieces of 16 bytes
};

/// Padded head dims are template arguments.
template <int Dk, int Dv>
void launch_forward(const ForwardParams& p, DType io, cudaStream_t stream);
template <>
void launch_forward<64, 64>(const ForwardParams& p, DType io, cudaStream_t stream);
template <>
void launch_forward<128, 128>(const ForwardParams& p, DType io, cudaStream_t stream);
template <>
void launch_forward<192, 128>(const ForwardParams& p, DType io, cudaStream_t stream);
template <>
void launch_forward<256, 256>(const ForwardParams& p, DType io, cudaStream_t stream);
template <int Dk, int Dv>
void launch_backward(const BackwardParams& p, DType io, cudaStream_t stream);
template <>
void launch_backward<64, 64>(const BackwardParams& p, DType io, cudaStream_t stream);
template <>
void launch_backward<128, 128>(const BackwardParams& p, DType io, cudaStream_t stream);

/// dK and dV without dQ, and dQ alone: gradients that repeat bit for bit.
template <int Dk, int Dv>
void launch_key_grad(const BackwardParams& p, DType io, cudaStream_t stream);
template <int Dk, int Dv>
void launch_query_grad(const QueryGradParams& p, DType io, cudaStream_t stream);
template <>
void launch_key_grad<64, 64>(const BackwardParams& p, DType io, cudaStream_t stream);
template <>
void launch_query_grad<64, 64>(const QueryGradParams& p, DType io, cudaStream_t stream);
template <>
void launch_key_grad<128, 128>(const BackwardParams& p, DType io, cudaStream_t stream);
template <>
void launch_query_grad<128, 128>(const QueryGradParams& p, DType io, cudaStream_t stream);
template <>
void launch_key_grad<192, 128>(const BackwardParams& p, DType io, cudaStream_t stream);
template <>
void launch_query_grad<192, 128>(const QueryGradParams& p, DType io, cudaStream_t stream);
template <>
void launch_key_grad<256, 256>(const BackwardParams& p, DType io, cudaStream_t stream);
template <>
void launch_query_grad<256, 256>(const QueryGradParams& p, DType io, cudaStream_t stream);

}  // namespace usp::kernels::hopper
