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
  KernelStep(kernels::AttentionKernel& kernel, const StepList& list)
      : step_(kernel.prepare(args_of(list.front()))) {}
  [[nodiscard]] bool fits(const StepList& list) const override {
    return list.gates == nullptr && step_->fits(args_of(list.front()));
  }
  void run(const StepList& list) override { step_->run(args_of(list.front())); }

 private:
  std::unique_ptr<kernels::PreparedStep<Args>> step_;
};

/// A list of blocks.
template <class Args, Args (*args_of)(const StepCall&)>
class KernelList final : public PreparedOperation {
 public:
  KernelList(kernels::AttentionKernel& kernel, const StepList& list)
      : step_(kernel.prepare_blocks(blocks_of(list))) {}
  [[nodiscard]] bool fits(const StepList& list) const override {
    return list.gates != nullptr && step_->fits(blocks_of(list));
  }
  void run(const StepList& list) override { step_->run(blocks_of(list)); }

 private:
  [[nodiscard]] kernels::BlockList<Args> blocks_of(const StepList& list) const {
    blocks_.clear();
    for (i64 i = 0; i < list.count; ++i) blocks_.push_back(args_of(list.steps[i]));
    return {blocks_.data(), list.count, list.gates, list.watch, list.completions};
  }

  mutable std::vector<Args> blocks_;  ///< its room is kept
  std::unique_ptr<kernels::PreparedStep<kernels::BlockList<Args>>> step_;
};

template <class Args, Args (*args_of)(const StepCall&)>
std::unique_ptr<PreparedOperation> prepare(kernels::AttentionKernel& kernel, const StepList& list) {
  if (list.gates != nullptr) return std::make_unique<KernelList<Args, args_of>>(kernel, list);
  return std::make_unique<KernelStep<Args, args_of>>(kernel, list);
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
