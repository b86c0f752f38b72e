// SPDX-License-Identifier: Apache-2.0
#include "kernel_call.hpp"

#include <algorithm>
#include <cmath>

namespace usp::measure {
namespace {

/// A backend whose blocks another kernel merges gives them in the type of its inputs.
DType result_type(const BlockCall& call) {
  return !call.use || (*call.use)->carries_state ? accumulator_of(call.dtype) : call.dtype;
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

KernelCall::KernelCall(kernels::AttentionKernel& kernel, const BlockCall& call)
    : kernel_(kernel), tensors_(kernel.memory()) {
  const KernelShape& shape = call.shape;
  const auto rows = static_cast<i64>(shape.rows), keys = static_cast<i64>(shape.key_rows);
  const auto heads = static_cast<i64>(shape.query_heads), kv = static_cast<i64>(shape.kv_heads);
  const i64 qk = shape.head_dim_qk, v = shape.head_dim_v;
  slice_ = slice_of(shape.mask, rows, keys, call.window);
  terms_.scale = 1 / std::sqrt(static_cast<double>(qk));
  const DType in = call.dtype, sums = accumulator_of(in), out = result_type(call);
  const i64 query_rows = rows * heads, key_rows = keys * kv;
  constexpr i64 parts = 12;
  tensors_.reserve(bytes_of(in) * (query_rows * (qk + v) + key_rows * (qk + v)) +
                       bytes_of(sums) * (query_rows * (v + 2 + qk) + key_rows * (qk + v)),
                   parts);
  kernels::AttendScope scope{{0, heads}, static_cast<int>(heads / kv), &slice_, 1, &terms_, {}, call.use};
  attend_args_ = {tensors_.random(in, rows, heads, qk),
                  tensors_.random(in, keys, kv, qk),
                  tensors_.random(in, keys, kv, v),
                  tensors_.take(out, rows, heads, v),
                  tensors_.take(sums, rows, heads, 1),
                  scope,
                  true,
                  nullptr};
  attend_ = kernel.prepare(attend_args_);
  delta_ = tensors_.take(sums, rows, heads, 1);
  attend_grad_args_ = {attend_args_.q,
                       attend_args_.k,
                       attend_args_.v,
                       tensors_.random(in, rows, heads, v),
                       attend_args_.lse,
                       delta_,
                       tensors_.take(out, rows, heads, qk),
                       tensors_.take(out, keys, kv, qk),
                       tensors_.take(out, keys, kv, v),
                       scope,
                       true,
                       attend_args_.o};
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
