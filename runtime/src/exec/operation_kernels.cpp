// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/operation_kernels.hpp"

namespace usp {
namespace {

void attend(kernels::AttentionKernel& kernel, const StepCall& c) {
  kernel.attend({c[Tensor::q], c[Tensor::k], c[Tensor::v], c[Tensor::o], c[Tensor::lse], c.scope,
                 c.step->overwrite, c.sink});
}

void delta(kernels::AttentionKernel& kernel, const StepCall& c) {
  kernel.delta({c[Tensor::d_o], c[Tensor::o], c[Tensor::lse], c[Tensor::delta], c.scope.query_heads, c.sink,
                c.d_sink});
}

void attend_grad(kernels::AttentionKernel& kernel, const StepCall& c) {
  kernel.attend_grad({c[Tensor::q], c[Tensor::k], c[Tensor::v], c[Tensor::d_o], c[Tensor::lse],
                      c[Tensor::delta], c[Tensor::dq], c[Tensor::dk], c[Tensor::dv], c.scope,
                      c.step->overwrite, c[Tensor::o]});
}

}  // namespace

const std::vector<OperationKernel>& operation_kernels() {
  static const std::vector<OperationKernel> table = {{&schedule::operations::attend, attend},
                                                     {&schedule::operations::delta, delta},
                                                     {&schedule::operations::attend_grad, attend_grad}};
  return table;
}

}  // namespace usp
