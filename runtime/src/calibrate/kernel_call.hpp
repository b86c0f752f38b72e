// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "random_fill.hpp"

#include "usp/kernels/attention_kernel.hpp"
#include "usp/planner/attention_cost_model.hpp"
#include "usp/schedule/backend.hpp"
#include "usp/schedule/slice.hpp"

#include <memory>
#include <optional>

namespace usp::measure {

/// What is called: shapes of one block of attention.
struct BlockCall {
  DType dtype = DType::fp32;
  KernelShape shape;
  i64 window = 0;  ///< keys that a query sees, itself included; of KernelShape::Mask::window alone
  /// Backend of GPUs whose kernel it is: what it leaves to another counts among its fallbacks. Results have
  /// the type that it gives a block which another kernel merges. Empty: of the host, which adds to a state.
  std::optional<Backend> use{};
};

/// One attention block call of a shape, in memory of its own, made again and again.
class KernelCall {
 public:
  KernelCall(kernels::AttentionKernel& kernel, const BlockCall& call);
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
  kernels::AttentionKernel& kernel_;
  kernels::ScoreTerms terms_;
  schedule::Slice slice_;
  Tensors tensors_;
  kernels::View delta_;
  kernels::AttendArgs attend_args_;
  kernels::AttendGradArgs attend_grad_args_;
  std::unique_ptr<kernels::PreparedAttend> attend_;
  std::unique_ptr<kernels::PreparedAttendGrad> attend_grad_;
};

/// Visible pairs of one head over rows.
[[nodiscard]] double mean_keys(KernelShape::Mask mask, i64 rows, i64 keys, i64 window);

}  // namespace usp::measure
