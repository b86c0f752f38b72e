// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "random_fill.hpp"

#include "usp/comm/communicator.hpp"
#include "usp/runtime/attention.hpp"

#include <memory>

namespace usp::measure {

/// A short causal call of one rank through the runtime: what a pass takes beside its kernels and transfers
/// shows in it.
class RuntimeCall {
 public:
  static constexpr i64 tokens = 128, heads = 2, head_dim = 64;
  /// @param backend that the kernel is of
  RuntimeCall(kernels::AttentionKernel& kernel, Backend backend, DType dtype);
  void forward() { attention_.forward(inputs_, out_); }
  /// After a forward.
  void backward() { attention_.backward(inputs_, d_out_, gradients_); }

 private:
  std::unique_ptr<comm::Communicator> alone_ = comm::make_serial_communicator();
  Tensors tensors_;
  AttentionOperator attention_;
  AttentionInputs inputs_;
  kernels::View out_, d_out_;
  AttentionGradients gradients_;
};

}  // namespace usp::measure
