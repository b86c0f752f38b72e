// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "list_call.hpp"

#include "usp/planner/calibration.hpp"
#include "usp/planner/detail/work_profile.hpp"
#include "usp/planner/pricing.hpp"
#include "usp/schedule/generate.hpp"
#include "usp/schedule/operation.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

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

inline void keep_longest(Estimate& longest, const Estimate& other) {
  if (other.seconds > longest.seconds) longest = other;
}

/// Times of the kernels of one plan. Where a pass has several units its results are fp32 sums in memory:
/// blocks of kernels that do not carry them are written in the input type, read again and added.
class KernelTimes {
 public:
  /// @param computes the pass, by AttentionPricer::computing_backend
  KernelTimes(const Calibration& calibration, const AttentionPlan& plan, Backend computes,
              const ExecutionOptions& options)
      : kernel_(calibration.kernel_of(computes)),
        plan_(plan),
        shape_(plan.shape),
        options_(options),
        one_launch_(computes->waits_inside) {}

  /// Of an operation on the pairs of a block.
  [[nodiscard]] Estimate on_pairs(const schedule::Operation& operation, const HeadCount& heads,
                                  const BlockShape& block, const ResultsBefore& results) const {
    const KernelShape call = call_of(heads, block);
    const bool backward = is_backward(operation);
    Estimate time = backward ? kernel_.backward(call) : kernel_.forward(call);
    time.seconds *= operation.cost.times;
    if (options_.merge_kernels && plan_.mesh.ring() > 1)
      time += backward ? sum_gradients(call, results) : merge(call, results.first);
    return time;
  }

  /// The call for the list that work is in, of ranks with these heads. Where the blocks of a list are one
  /// launch, a list that goes on with the results of another takes o in fp32 written and read, 8 B an
  /// element at the bandwidth of memory; and a call more, which is what two take over one of as many keys
  /// (launch, begin and end of every tile), but for the second: the own block and all others are priced as a
  /// call each. Backward's items wait for a block of their own. @param block of one, full
  [[nodiscard]] ListCall of_list(const schedule::ComputeOp& w, const std::vector<HeadCount>& counts,
                                 const BlockShape& block) const {
    ListCall list;
    list.number = w.list;
    if (!one_launch_ || is_backward(*w.operation)) return list;
    for (const HeadCount& heads : counts) {
      KernelShape call = call_of(heads, block);
      list.waves = std::max(list.waves, waves(call));
      const double head_rows = call.query_heads * call.rows;
      Estimate more = kernel_.memory_bound(2 * sum_bytes * head_rows * call.head_dim_v, 0);
      if (w.list > 2) more.seconds += seconds_of_cut(call);
      keep_longest(list.continued, more);
    }
    return list;
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
  [[nodiscard]] static bool is_backward(const schedule::Operation& operation) {
    return operation.cost.kernel == schedule::OperationCost::Kernel::attention_backward;
  }
  [[nodiscard]] KernelShape call_of(const HeadCount& heads, const BlockShape& block) const {
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
    return call;
  }
  /// Of two calls forward over one of as many keys.
  [[nodiscard]] double seconds_of_cut(KernelShape call) const {
    const double two = 2 * kernel_.forward(call).seconds;
    call.mean_keys *= 2, call.key_rows *= 2;
    return two - kernel_.forward(call).seconds;
  }
  /// Tiles that a multiprocessor computes one after another; 1 of a card whose multiprocessors are not known:
  /// then nothing says how much work the wait of a wave holds up.
  [[nodiscard]] double waves(const KernelShape& call) const {
    const KernelData& data = kernel_.data();
    if (!data.knows_multiprocessors()) return 1;
    return call.query_heads * std::ceil(call.rows / data.tile_rows) / data.sm_count;
  }
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
  bool one_launch_;
};

}  // namespace usp
