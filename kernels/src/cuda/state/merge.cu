// SPDX-License-Identifier: Apache-2.0
#include "../layout/element.hpp"
#include "../layout/strided_copy.hpp"
#include "rows.hpp"
#include "state.hpp"

#include "usp/device/check.cuda.hpp"

namespace usp::kernels::cuda {
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

template <class In, int pack, bool overwrite>
__global__ void __launch_bounds__(row_threads)
    merge_kernel(Deal deal, RowsOf<const In> o_i, RowsOf<const float> lse_i, RowsOf<float> o,
                 RowsOf<float> lse, const double* sink) {
  // A group has a lane for each of its rows: that lane alone reads and writes the row's lse.
  const int lane = deal.lane();
  float weight = 0;
  bool seen = false;
  const std::uint32_t own_row = deal.number(lane);
  if (lane < rows_per_group && own_row < deal.count) {
    float* const at = lse.row(deal, own_row);
    const float own = *lse_i.row(deal, own_row);
    const float carried = overwrite ? empty_lse(sink, deal.head(own_row)) : *at;
    seen = own != -INFINITY;
    const Joined joined = seen ? join(carried, own) : Joined{carried, 0};
    weight = joined.weight;
    if (overwrite || seen) *at = joined.lse;
  }
  const In* in_row[rows_per_group];
  float* out_row[rows_per_group];
  float weights[rows_per_group];
  bool sees[rows_per_group], writes[rows_per_group];
#pragma unroll
  for (int u = 0; u < rows_per_group; ++u) {
    const std::uint32_t n = deal.number(u);
    in_row[u] = o_i.row(deal, deal.existing(n));
    out_row[u] = o.row(deal, deal.existing(n));
    weights[u] = __shfl_sync(0xffffffffU, weight, u, deal.lanes);
    sees[u] = __shfl_sync(0xffffffffU, static_cast<int>(seen), u, deal.lanes) != 0;
    writes[u] = n < deal.count && (overwrite || sees[u]);
  }
#pragma unroll 1
  for (int w = lane * pack; w < deal.width; w += deal.lanes * pack) {
    Pack<In, pack> in[rows_per_group];
    Pack<float, pack> out[rows_per_group];
#pragma unroll
    for (int u = 0; u < rows_per_group; ++u) {
      in[u] = Pack<In, pack>::load(in_row[u] + w);
      if constexpr (!overwrite) out[u] = Pack<float, pack>::load(out_row[u] + w);
    }
#pragma unroll
    for (int u = 0; u < rows_per_group; ++u) {
#pragma unroll
      for (int i = 0; i < pack; ++i) {
        const float before = overwrite ? 0.0F : out[u].at(i);
        const float own = sees[u] ? widen(in[u].at(i)) : 0.0F;
        out[u].set(i, before + weights[u] * (own - before));
      }
      if (writes[u]) out[u].store(out_row[u] + w);
    }
  }
}

template <class In, bool overwrite>
void merge_of(const MergeArgs& a, cudaStream_t stream) {
  constexpr int pack = 4;  // 16 bytes of the state
  const auto o_i = RowsOf<const In>::of(a.o_i, 0, a.heads);
  const auto lse_i = RowsOf<const float>::of(a.lse_i, 0, a.heads);
  const auto o = RowsOf<float>::of(a.o, a.rows.begin, a.heads);
  const auto lse = RowsOf<float>::of(a.lse, a.rows.begin, a.heads);
  const bool packed = a.o.width % pack == 0 && o_i.aligned(pack) && o.aligned(pack);
  const Deal deal(a.o.batch, a.rows.size(), a.heads.size(), a.o.width, packed ? pack : 1);
  const auto kernel = packed ? merge_kernel<In, pack, overwrite> : merge_kernel<In, 1, overwrite>;
  kernel<<<deal.blocks(), row_threads, 0, stream>>>(deal, o_i.dealt(deal), lse_i.dealt(deal), o.dealt(deal),
                                                    lse.dealt(deal),
                                                    a.sink == nullptr ? nullptr : a.sink + a.heads.begin);
  device::check_launch("merge_kernel");
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
    if (a.overwrite)
      merge_of<In, true>(a, stream);
    else
      merge_of<In, false>(a, stream);
  });
}

void launch_accumulate(const ConstView& from, const View& to, Range rows, Range heads, WriteMode mode,
                       CUstream_st* stream) {
  launch_copy(region_copy(from, {{0, rows.size()}, heads}, to, {rows, heads}, mode), stream);
}

void launch_pack_lse(const ConstView& lse, Range rows, Range heads, float* packed, CUstream_st* stream) {
  const Deal deal(lse.batch, rows.size(), heads.size(), 1, 1);
  if (deal.count == 0) return;
  const unsigned blocks = (deal.count + row_threads - 1) / row_threads;
  pack_lse_kernel<<<blocks, row_threads, 0, stream>>>(deal, RowsOf<const float>::of(lse, rows.begin, heads),
                                                      packed);
  device::check_launch("pack_lse_kernel");
}

}  // namespace usp::kernels::cuda
