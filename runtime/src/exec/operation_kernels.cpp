// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/operation_kernels.hpp"

namespace usp {
namespace {

[[nodiscard]] kernels::AttendArgs attend_args(const StepCall& c) {
  return {c[Tensor::q],   c[Tensor::k], c[Tensor::v],      c[Tensor::o],
          c[Tensor::lse], c.scope,      c.step->overwrite, c.sink};
}

[[nodiscard]] kernels::AttendGradArgs attend_grad_args(const StepCall& c) {
  return {c[Tensor::q],      c[Tensor::k],  c[Tensor::v],         c[Tensor::d_o], c[Tensor::lse],
          c[Tensor::delta],  c[Tensor::dq], c[Tensor::dk],        c[Tensor::dv],  c.scope,
          c.step->overwrite, c[Tensor::o],  c.step->overwrite_dkv};
}

/// A step of the kernel.
template <class Args, Args (*args_of)(const StepCall&)>
class KernelStep final : public PreparedOperation {
 public:
  explicit KernelStep(std::unique_ptr<kernels::PreparedStep<Args>> step) : step_(std::move(step)) {}
  [[nodiscard]] bool fits(const StepCall& call) const override { return step_->fits(args_of(call)); }
  void run(const StepCall& call) override { step_->run(args_of(call)); }

 private:
  std::unique_ptr<kernels::PreparedStep<Args>> step_;
};

template <class Args, Args (*args_of)(const StepCall&)>
std::unique_ptr<PreparedOperation> prepare(kernels::AttentionKernel& kernel, const StepCall& call) {
  return std::make_unique<KernelStep<Args, args_of>>(kernel.prepare(args_of(call)));
}

void delta(kernels::AttentionKernel& kernel, const StepCall& c) {
  kernel.delta({c[Tensor::d_o], c[Tensor::o], c[Tensor::lse], c[Tensor::delta], c.scope.query_heads, c.sink,
                c.d_sink});
}

}  // namespace

const std::vector<OperationKernel>& operation_kernels() {
  static const std::vector<OperationKernel> table = {
      {&schedule::operations::attend, prepare<kernels::AttendArgs, attend_args>},
      {&schedule::operations::delta, prepare_nothing<delta>},
      {&schedule::operations::attend_grad, prepare<kernels::AttendGradArgs, attend_grad_args>}};
  return table;
}

}  // namespace usp
