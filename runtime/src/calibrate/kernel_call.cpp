// SPDX-License-Identifier: Apache-2.0
#include "kernel_call.hpp"

#include "usp/runtime/host_tensor.hpp"

#include <algorithm>
#include <cmath>
#include <random>

namespace usp::measure {
namespace {

constexpr i64 boundary = 256;

i64 rounded(i64 bytes) {
  return (bytes + boundary - 1) / boundary * boundary;
}

schedule::Slice slice_of(KernelShape::Mask mask, i64 rows, i64 keys, i64 window) {
  schedule::Slice slice;
  slice.q_count = rows;
  slice.k_count = keys;
  slice.q_pos = keys - rows;  // the last query has the position of the last key
  if (mask != KernelShape::Mask::full) slice.diff_min = 0;
  if (mask == KernelShape::Mask::window) slice.diff_max = window - 1;
  return slice;
}

}  // namespace

double mean_keys(KernelShape::Mask mask, i64 rows, i64 keys, i64 window) {
  return static_cast<double>(schedule::area(slice_of(mask, rows, keys, window))) / static_cast<double>(rows);
}

KernelCall::KernelCall(kernels::AttentionKernel& kernel, DType dtype, const KernelShape& shape, i64 window)
    : kernel_(kernel), dtype_(dtype) {
  const auto rows = static_cast<i64>(shape.rows), keys = static_cast<i64>(shape.key_rows);
  const auto heads = static_cast<i64>(shape.query_heads), kv = static_cast<i64>(shape.kv_heads);
  const i64 qk = shape.head_dim_qk, v = shape.head_dim_v;
  slice_ = slice_of(shape.mask, rows, keys, window);
  terms_.scale = 1 / std::sqrt(static_cast<double>(qk));
  const DType sums = accumulator_of(dtype);
  const i64 element = bytes_of(dtype), sum = bytes_of(sums);
  const i64 query_rows = rows * heads, key_rows = keys * kv;
  arena_ = kernel.memory().make_arena();
  arena_->reserve(element * (query_rows * (qk + v) + key_rows * (qk + v)) +
                  sum * (query_rows * (v + 2 + qk) + key_rows * (qk + v)) + 16 * boundary);
  kernel.memory().set_bytes(arena_->data(), 0, arena_->bytes());
  kernels::AttendScope scope{{0, heads}, static_cast<int>(heads / kv), &slice_, 1, &terms_, {}, {}};
  attend_args_ = {take(dtype, rows, heads, qk),
                  take(dtype, keys, kv, qk),
                  take(dtype, keys, kv, v),
                  take(sums, rows, heads, v),
                  take(sums, rows, heads, 1),
                  scope,
                  true,
                  nullptr};
  attend_ = kernel.prepare(attend_args_);
  delta_ = take(sums, rows, heads, 1);
  attend_grad_args_ = {attend_args_.q,
                       attend_args_.k,
                       attend_args_.v,
                       take(dtype, rows, heads, v),
                       attend_args_.lse,
                       delta_,
                       take(sums, rows, heads, qk),
                       take(sums, keys, kv, qk),
                       take(sums, keys, kv, v),
                       scope,
                       true,
                       attend_args_.o};
  for (const kernels::ConstView& view :
       {attend_args_.q, attend_args_.k, attend_args_.v, attend_grad_args_.d_o})
    fill_random(view);
}

/// Values of a normal distribution: how much power a multiplication takes depends on them.
void KernelCall::fill_random(const kernels::ConstView& view) {
  constexpr i64 most = 1 << 16;
  const i64 elements = view.elements(), block = std::min(elements, most);
  HostTensor values(DType::fp64, 1, block, {0, 1}, 1);
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  auto* const numbers = reinterpret_cast<double*>(values.bytes().data());
  for (i64 i = 0; i < block; ++i) numbers[i] = normal(random);
  const HostTensor typed = values.as(dtype_);
  auto* const target = const_cast<std::byte*>(view.data);
  for (i64 first = 0; first < elements; first += block)
    kernel_.memory().from_host(target + first * bytes_of(dtype_), typed.bytes().data(),
                               std::min(block, elements - first) * bytes_of(dtype_));
  kernel_.memory().synchronize();
}

kernels::View KernelCall::take(DType type, i64 rows, i64 heads, i64 width) {
  kernels::View view(arena_->data() + used_, type, 1, rows, {0, heads}, width);
  used_ += rounded(view.elements() * bytes_of(type));
  return view;
}

void KernelCall::prepare_backward() {
  forward();
  kernel_.delta(
      {attend_grad_args_.d_o, attend_args_.o, attend_args_.lse, delta_, attend_args_.scope.query_heads});
  attend_grad_ = kernel_.prepare(attend_grad_args_);
}

void KernelCall::set_progress(kernels::Progress progress) {
  attend_args_.scope.progress = progress;
  attend_grad_args_.scope.progress = progress;
}

}  // namespace usp::measure
