// SPDX-License-Identifier: Apache-2.0
#include "../layout/element.hpp"
#include "../layout/strided_copy.hpp"
#include "rows.hpp"
#include "state.hpp"

#include "usp/device/cuda_error.hpp"

namespace usp::cuda {
namespace {

struct Joined {
  float lse, weight;  // of the block's result
};
/// Two log-sum-exps, of which lse_i is not -inf; no exponential overflows.
__device__ Joined join(float lse, float lse_i) {
  const float gap = lse_i - lse;  // +inf where the state is empty
  const float small = expf(-fabsf(gap));
  return {fmaxf(lse, lse_i) + log1pf(small), (gap > 0 ? 1.0F : small) / (1 + small)};
}

/// The empty state's logit of a head.
__device__ float empty_lse(const double* sink, std::uint32_t head) {
  return sink == nullptr ? -INFINITY : static_cast<float>(sink[head]);
}

template <class In, int pack, bool fresh>
__global__ void __launch_bounds__(row_threads)
    merge_kernel(Deal deal, RowsOf<const In> o_i, RowsOf<const float> lse_i, RowsOf<float> o,
                 RowsOf<float> lse, const double* sink) {
  Joined joined[rows_per_group];
  bool seen[rows_per_group] = {};
#pragma unroll
  for (int u = 0; u < rows_per_group; ++u) {
    const std::uint32_t n = deal.number(u);
    if (n >= deal.count) break;
    const Deal::Row r = deal.row(n);
    const float own = *lse_i.at(r.batch, r.row, r.head);
    const float carried = fresh ? empty_lse(sink, r.head) : *lse.at(r.batch, r.row, r.head);
    seen[u] = own != -INFINITY;
    joined[u] = seen[u] ? join(carried, own) : Joined{carried, 0};
  }
  for (int w = deal.lane() * pack; w < deal.width; w += deal.lanes * pack) {
    Pack<In, pack> in[rows_per_group];
    Pack<float, pack> out[rows_per_group];
    i64 target[rows_per_group];
#pragma unroll
    for (int u = 0; u < rows_per_group; ++u) {
      if (deal.number(u) >= deal.count) break;
      const Deal::Row r = deal.row(deal.number(u));
      target[u] = r.batch * o.batch_stride + r.row * o.row_stride + r.head * o.head_stride + w;
      if (!seen[u]) continue;
      in[u] = Pack<In, pack>::load(o_i.at(r.batch, r.row, r.head) + w);
      if constexpr (!fresh) out[u] = Pack<float, pack>::load(o.data + target[u]);
    }
#pragma unroll
    for (int u = 0; u < rows_per_group; ++u) {
      if (deal.number(u) >= deal.count) break;
      if (!fresh && !seen[u]) continue;
#pragma unroll
      for (int i = 0; i < pack; ++i) {
        const float before = fresh ? 0.0F : out[u].at(i);
        const float own = seen[u] ? widen(in[u].at(i)) : 0.0F;
        out[u].set(i, before + joined[u].weight * (own - before));
      }
      out[u].store(o.data + target[u]);
    }
  }
  // The lanes of a group have all read lse before its first lane writes it.
  __syncwarp();
  if (deal.lane() != 0) return;
#pragma unroll
  for (int u = 0; u < rows_per_group; ++u) {
    const std::uint32_t n = deal.number(u);
    if (n >= deal.count) break;
    const Deal::Row r = deal.row(n);
    if (fresh || seen[u]) *lse.at(r.batch, r.row, r.head) = joined[u].lse;
  }
}

template <class In, bool fresh>
void merge_of(const MergeArgs& a, cudaStream_t stream) {
  constexpr int pack = 4;  // 16 bytes of the state
  const auto o_i = RowsOf<const In>::of(a.o_i, 0, a.heads);
  const auto lse_i = RowsOf<const float>::of(a.lse_i, 0, a.heads);
  const auto o = RowsOf<float>::of(a.o, a.rows.begin, a.heads);
  const auto lse = RowsOf<float>::of(a.lse, a.rows.begin, a.heads);
  const bool packed = a.o.width % pack == 0 && o_i.aligned(pack) && o.aligned(pack);
  const Deal deal(a.o.batch, a.rows.size(), a.heads.size(), a.o.width, packed ? pack : 1);
  const auto kernel = packed ? merge_kernel<In, pack, fresh> : merge_kernel<In, 1, fresh>;
  kernel<<<deal.blocks(), row_threads, 0, stream>>>(deal, o_i, lse_i, o, lse,
                                                    a.sink == nullptr ? nullptr : a.sink + a.heads.begin);
  check_launch("merge_kernel");
}

void check(const MergeArgs& a) {
  const auto has = [&](const ConstView& v, i64 rows) {
    return v.batch == a.o.batch && v.rows >= rows && v.heads.begin <= a.heads.begin &&
           a.heads.end <= v.heads.end;
  };
  expects(a.rows.begin >= 0 && has(a.o, a.rows.end) && has(a.lse, a.rows.end) && has(a.o_i, a.rows.size()) &&
              has(a.lse_i, a.rows.size()) && a.o.width == a.o_i.width && a.lse.width == 1 &&
              a.lse_i.width == 1,
          "a block's result does not fit the state");
  expects(a.o.type == DType::fp32 && a.lse.type == DType::fp32 && a.lse_i.type == DType::fp32 &&
              a.o_i.type != DType::fp64,
          "a block's result and the state do not have the types of a merge");
}

__global__ void pack_lse_kernel(Deal deal, RowsOf<const float> lse, float* packed) {
  const std::uint32_t n = blockIdx.x * row_threads + threadIdx.x;
  if (n >= deal.count) return;
  std::uint32_t rest = n;
  const std::uint32_t row = deal.rows.split(rest), head = deal.heads.split(rest);
  const float x = *lse.at(rest, row, head);
  packed[n] = x == -INFINITY ? INFINITY : x;
}

}  // namespace

void launch_merge(const MergeArgs& a, CUstream_st* stream) {
  check(a);
  if (a.rows.empty() || a.heads.empty() || a.o.batch == 0) return;
  with_narrow_type(a.o_i.type, [&](auto* in) {
    using In = std::remove_pointer_t<decltype(in)>;
    if (a.fresh)
      merge_of<In, true>(a, stream);
    else
      merge_of<In, false>(a, stream);
  });
}

void launch_accumulate(const ConstView& from, const View& to, Range rows, Range heads, Land land,
                       CUstream_st* stream) {
  launch_copy(box_copy(from, {{0, rows.size()}, heads}, to, {rows, heads}, land), stream);
}

void launch_pack_lse(const ConstView& lse, Range rows, Range heads, float* packed, CUstream_st* stream) {
  const Deal deal(lse.batch, rows.size(), heads.size(), 1, 1);
  if (deal.count == 0) return;
  const unsigned blocks = (deal.count + row_threads - 1) / row_threads;
  pack_lse_kernel<<<blocks, row_threads, 0, stream>>>(deal, RowsOf<const float>::of(lse, rows.begin, heads),
                                                      packed);
  check_launch("pack_lse_kernel");
}

}  // namespace usp::cuda
