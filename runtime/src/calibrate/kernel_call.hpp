// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/attention_kernel.hpp"
#include "usp/planner/attention_cost_model.hpp"
#include "usp/schedule/slice.hpp"

#include <memory>

namespace usp::measure {

/// One attention block call of a shape, in memory of its own, made again and again.
class KernelCall {
 public:
  /// @param window keys that a query sees, itself included; of KernelShape::Mask::window alone
  KernelCall(kernels::AttentionKernel& kernel, DType dtype, const KernelShape& shape, i64 window = 0);
  KernelCall(const KernelCall&) = delete;
  KernelCall& operator=(const KernelCall&) = delete;
  ~KernelCall() = default;
  void forward() { attend_->run(attend_args_); }
  void backward() { attend_grad_->run(attend_grad_args_); }
  /// Before backward(): the state of a forward, and what backward needs beside it.
  void prepare_backward();
  /// Lets transfers advance between tiles.
  void set_progress(kernels::Progress progress);

 private:
  [[nodiscard]] kernels::View take(DType type, i64 rows, i64 heads, i64 width);
  void fill_random(const kernels::ConstView& view);

  kernels::AttentionKernel& kernel_;
  DType dtype_;
  kernels::ScoreTerms terms_;
  schedule::Slice slice_;
  std::unique_ptr<kernels::Arena> arena_;
  i64 used_ = 0;
  kernels::View delta_;
  kernels::AttendArgs attend_args_;
  kernels::AttendGradArgs attend_grad_args_;
  std::unique_ptr<kernels::PreparedAttend> attend_;
  std::unique_ptr<kernels::PreparedAttendGrad> attend_grad_;
};

/// Visible pairs of one head over rows.
[[nodiscard]] double mean_keys(KernelShape::Mask mask, i64 rows, i64 keys, i64 window);

}  // namespace usp::measure
