// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/attention_kernel.hpp"
#include "usp/schedule/rank_schedule.hpp"

#include <memory>
#include <vector>

/// How the runtime executes an operation: one entry per record of usp/schedule/operation.hpp.
namespace usp {

/// One step of a rank, with its buffers in memory.
struct StepCall {
  const schedule::Step* step = nullptr;
  const kernels::View* views = nullptr;  ///< by tensor; data is null where the step has no such buffer
  kernels::AttendScope scope;    ///< query heads of the step; slices and backend where it works on pairs
  const double* sink = nullptr;  ///< per global query head, in the kernel's memory; null: none
  double* d_sink = nullptr;      ///< added to
  [[nodiscard]] const kernels::View& operator[](Tensor tensor) const {
    return views[static_cast<std::size_t>(tensor)];
  }
};

/// The steps that one call computes, in this order: a step, or the blocks of a list (Step::joined), which may
/// arrive while it runs. Non-owning.
struct StepList {
  const StepCall* steps = nullptr;
  i64 count = 1;
  const kernels::Gate* gates = nullptr;  ///< of each step; null: not a list
  kernels::GateWatch watch;
  const kernels::Completion* completions = nullptr;  ///< of each step, of a list behind gates

  [[nodiscard]] const StepCall& front() const { return steps[0]; }
};

/// A call that was prepared, which its kernel outlives: usp/kernels/attention_kernel.hpp, PreparedStep.
class PreparedOperation {
 public:
  virtual ~PreparedOperation() = default;
  /// Whether run() takes the steps; else they are prepared anew.
  [[nodiscard]] virtual bool fits(const StepList& list) const = 0;
  virtual void run(const StepList& list) = 0;  ///< local; allocates nothing
};

struct OperationKernel {
  const schedule::Operation* operation = nullptr;
  std::unique_ptr<PreparedOperation> (*prepare)(kernels::AttentionKernel& kernel,
                                                const StepList& list) = nullptr;
};

/// OperationKernel::prepare of an operation that decides nothing ahead.
template <void (*compute)(kernels::AttentionKernel& kernel, const StepCall& call)>
[[nodiscard]] std::unique_ptr<PreparedOperation> prepare_nothing(kernels::AttentionKernel& kernel,
                                                                 const StepList& /*list*/) {
  class Operation final : public PreparedOperation {
   public:
    explicit Operation(kernels::AttentionKernel& of) : kernel_(of) {}
    [[nodiscard]] bool fits(const StepList&) const override { return true; }
    void run(const StepList& list) override {
      for (i64 i = 0; i < list.count; ++i) compute(kernel_, list.steps[i]);
    }

   private:
    kernels::AttentionKernel& kernel_;
  };
  return std::make_unique<Operation>(kernel);
}

/// attend, delta and attend_grad.
[[nodiscard]] const std::vector<OperationKernel>& operation_kernels();

}  // namespace usp
