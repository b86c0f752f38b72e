// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/planner/calibration.hpp"
#include "usp/planner/detail/work_profile.hpp"
#include "usp/planner/pricing.hpp"
#include "usp/schedule/generate.hpp"
#include "usp/schedule/operation.hpp"

namespace usp {

/// Query and KV heads of one ulysses rank in one chunk.
struct HeadCount {
  i64 query = 0;
  i64 kv = 0;
  friend bool operator==(const HeadCount& a, const HeadCount& b) {
    return a.query == b.query && a.kv == b.kv;
  }
};

/// What the results of a step hold before it.
struct ResultsBefore {
  bool first = false;           ///< nothing: of the blocks that add to one result it is the first
  bool overwrites_dkv = false;  ///< dK and dV hold nothing, and are written
  friend bool operator==(const ResultsBefore&, const ResultsBefore&) = default;
};

/// Times of the kernels of one plan. Where a pass has several units its results are fp32 sums in memory:
/// blocks of kernels that do not carry them are written in the input type, read again and added.
class KernelTimes {
 public:
  /// @param computes the pass, by AttentionPricer::computing_backend
  KernelTimes(const Calibration& calibration, const AttentionPlan& plan, Backend computes,
              const ExecutionOptions& options)
      : kernel_(calibration.kernel_of(computes)), plan_(plan), shape_(plan.shape), options_(options) {}

  /// Of an operation on the pairs of a block.
  [[nodiscard]] Estimate on_pairs(const schedule::Operation& operation, const HeadCount& heads,
                                  const BlockShape& block, const ResultsBefore& results) const {
    KernelShape call;
    const auto batch = static_cast<double>(shape_.batch);
    call.query_heads = batch * static_cast<double>(heads.query);
    call.kv_heads = batch * static_cast<double>(heads.kv);
    call.head_dim_qk = shape_.head_dim_qk;
    call.head_dim_v = shape_.head_dim_v;
    call.rows = block.rows;
    call.mean_keys = block.area / block.rows;
    call.key_rows = block.keys;
    call.element_bytes = static_cast<int>(bytes_of(shape_.dtype));
    call.mask = block.full()                      ? KernelShape::Mask::full
                : plan_.band.diff_max < unbounded ? KernelShape::Mask::window
                                                  : KernelShape::Mask::causal;
    const bool backward = operation.cost.kernel == schedule::OperationCost::Kernel::attention_backward;
    Estimate time = backward ? kernel_.backward(call) : kernel_.forward(call);
    time.seconds *= operation.cost.times;
    if (options_.merge_kernels && plan_.mesh.ring() > 1)
      time += backward ? sum_gradients(call, results) : merge(call, results.first);
    return time;
  }

  /// What a pass takes beside its operations.
  [[nodiscard]] Estimate of_call(bool backward) const {
    return {backward ? kernel_.data().call_backward_s : kernel_.data().call_forward_s, 0, 0};
  }

  /// Of an operation on all query rows.
  [[nodiscard]] Estimate on_rows(const schedule::Operation& operation, i64 query_heads, i64 rows) const {
    Estimate time = kernel_.prepare_backward(static_cast<double>(shape_.batch * query_heads * rows),
                                             shape_.head_dim_v, static_cast<int>(bytes_of(shape_.dtype)));
    time.seconds *= operation.cost.times;
    return time;
  }

 private:
  /// The own block begins the state.
  [[nodiscard]] Estimate merge(const KernelShape& call, bool first) const {
    if (kernel_.data().carries_state) return {};
    const double head_rows = call.query_heads * call.rows;
    if (!first) return kernel_.merge(head_rows, call.head_dim_v, call.element_bytes);
    return kernel_.memory_bound(head_rows * call.head_dim_v * (call.element_bytes + sum_bytes));
  }
  /// Sums begin with zeros: dQ with the pass, dK and dV where no step writes them first. A kernel that takes
  /// O instead of delta takes it in the input type.
  [[nodiscard]] Estimate sum_gradients(const KernelShape& call, const ResultsBefore& results) const {
    const double dq = call.query_heads * call.rows * call.head_dim_qk;
    const double dkv = call.kv_heads * call.key_rows * (call.head_dim_qk + call.head_dim_v);
    const bool zeroes = !results.overwrites_dkv;
    double bytes = sum_bytes * ((zeroes ? dkv : 0) + (results.first ? dq : 0));
    int kernels = (results.first ? 1 : 0) + (zeroes ? 2 : 0);
    if (!kernel_.data().carries_state) {
      bytes += (call.element_bytes + 2 * sum_bytes) * dq;
      bytes += (call.element_bytes + (zeroes ? 2 : 1) * sum_bytes) * dkv;
      kernels += 3;
      if (!schedule::computes_delta(plan_)) {
        bytes += call.query_heads * call.rows * call.head_dim_v * (sum_bytes + call.element_bytes);
        ++kernels;
      }
    }
    return kernel_.memory_bound(bytes, kernels);
  }

  static constexpr double sum_bytes = 4;
  const AttentionCostModel& kernel_;
  const AttentionPlan& plan_;
  const AttentionShape& shape_;
  const ExecutionOptions& options_;
};

inline void keep_longest(Estimate& longest, const Estimate& other) {
  if (other.seconds > longest.seconds) longest = other;
}

}  // namespace usp
