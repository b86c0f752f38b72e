// SPDX-License-Identifier: Apache-2.0
#include "../layout/element.hpp"
#include "rows.hpp"
#include "state.hpp"

#include "usp/device/check.cuda.hpp"

namespace usp::kernels::cuda {
namespace {

template <class Grad, class Out, int pack>
__global__ void __launch_bounds__(row_threads)
    delta_kernel(Deal deal, RowsOf<const Grad> d_o, RowsOf<const Out> o, RowsOf<float> delta) {
  float sum[rows_per_group] = {};
  const Grad* a_row[rows_per_group];
  const Out* b_row[rows_per_group];
#pragma unroll
  for (int u = 0; u < rows_per_group; ++u) {
    const std::uint32_t n = deal.existing(deal.number(u));
    a_row[u] = d_o.row(deal, n);
    b_row[u] = o.row(deal, n);
  }
#pragma unroll 1
  for (int w = deal.lane() * pack; w < deal.width; w += deal.lanes * pack) {
    Pack<Grad, pack> a[rows_per_group];
    Pack<Out, pack> b[rows_per_group];
#pragma unroll
    for (int u = 0; u < rows_per_group; ++u) {
      a[u] = Pack<Grad, pack>::stream(a_row[u] + w);
      b[u] = Pack<Out, pack>::stream(b_row[u] + w);
    }
#pragma unroll
    for (int u = 0; u < rows_per_group; ++u)
#pragma unroll
      for (int i = 0; i < pack; ++i) sum[u] += widen(a[u].at(i)) * widen(b[u].at(i));
  }
  for (int step = deal.lanes / 2; step > 0; step /= 2)
#pragma unroll
    for (int u = 0; u < rows_per_group; ++u) sum[u] += __shfl_xor_sync(0xffffffffU, sum[u], step);
  // All lanes of a group hold the sums of its rows; a group has a lane for each.
  float own = sum[0];
#pragma unroll
  for (int u = 1; u < rows_per_group; ++u)
    if (deal.lane() == u) own = sum[u];
  const std::uint32_t n = deal.number(deal.lane());
  if (deal.lane() < rows_per_group && n < deal.count) *delta.row(deal, n) = own;
}

constexpr int sink_threads = 1024;

/// One block per head: its threads take every 1024th row, and their sums meet in a tree.
__global__ void __launch_bounds__(sink_threads)
    sink_kernel(RowsOf<const float> lse, RowsOf<const float> delta, i64 batch, i64 rows, const double* sink,
                double* d_sink) {
  __shared__ double sums[sink_threads];
  const int head = static_cast<int>(blockIdx.x);
  const double logit = sink[head];
  double sum = 0;
  for (i64 b = 0; b < batch; ++b)
    for (i64 r = threadIdx.x; r < rows; r += sink_threads)
      sum += exp(fmin(0.0, logit - static_cast<double>(*lse.at(b, r, head)))) *
             static_cast<double>(*delta.at(b, r, head));
  sums[threadIdx.x] = sum;
  for (int half = sink_threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) d_sink[head] -= sums[0];
}

template <class Grad, class Out>
void delta_of(const DeltaArgs& a, cudaStream_t stream) {
  constexpr int pack = common_pack<Grad, Out>;
  const auto d_o = RowsOf<const Grad>::of(a.d_o, 0, a.query_heads);
  const auto o = RowsOf<const Out>::of(a.o, 0, a.query_heads);
  const auto delta = RowsOf<float>::of(a.delta, 0, a.query_heads);
  const bool packed = a.o.width % pack == 0 && d_o.aligned(pack) && o.aligned(pack);
  const Deal deal(a.o.batch, a.o.rows, a.query_heads.size(), a.o.width, packed ? pack : 1);
  const auto kernel = packed ? delta_kernel<Grad, Out, pack> : delta_kernel<Grad, Out, 1>;
  kernel<<<deal.blocks(), row_threads, 0, stream>>>(deal, d_o.dealt(deal), o.dealt(deal), delta.dealt(deal));
  device::check_launch("delta_kernel");
}

}  // namespace

void launch_delta(const DeltaArgs& a, CUstream_st* stream) {
  check(a);
  if (a.query_heads.empty() || a.o.batch * a.o.rows == 0) return;
  expects(a.delta.type == DType::fp32 && a.lse.type == DType::fp32 && a.o.type != DType::fp64 &&
              a.d_o.type != DType::fp64,
          "delta on a GPU takes no fp64");
  with_narrow_type(a.d_o.type, [&](auto* grad) {
    with_narrow_type(a.o.type, [&](auto* out) {
      delta_of<std::remove_pointer_t<decltype(grad)>, std::remove_pointer_t<decltype(out)>>(a, stream);
    });
  });
  if (a.sink == nullptr) return;
  sink_kernel<<<static_cast<unsigned>(a.query_heads.size()), sink_threads, 0, stream>>>(
      RowsOf<const float>::of(a.lse, 0, a.query_heads),
      RowsOf<const float>::of(ConstView(a.delta), 0, a.query_heads), a.o.batch, a.o.rows,
      a.sink + a.query_heads.begin, a.d_sink + a.query_heads.begin);
  device::check_launch("sink_kernel");
}

}  // namespace usp::kernels::cuda
