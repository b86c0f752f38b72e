// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/attention_kernel.hpp"

#include <memory>
#include <vector>

namespace usp::kernels {

/// A list of blocks as a step of each, one after the other, each behind its gate and before its completion.
/// Where the result of all of them, o or dq, is to be rounded, it is summed in scratch memory first.
template <class Args>
class BlockSteps final : public PreparedStep<BlockList<Args>> {
 public:
  BlockSteps(AttentionKernel& kernel, const BlockList<Args>& list)
      : PreparedStep<BlockList<Args>>(list), memory_(kernel.memory()) {
    check(list, kernel.rounds_results());
    const Args& first = list.front();
    if (result(first).type != accumulator_of(first.q.type) && !first.scope.query_heads.empty()) {
      sum_ = memory_.make_arena();
      sum_->reserve(sum_of(first).elements() * bytes_of(accumulator_of(first.q.type)));
    }
    for (const Args& block : list) steps_.push_back(kernel.prepare(summed(block)));
  }

 private:
  [[nodiscard]] static const View& result(const AttendArgs& a) { return a.o; }
  [[nodiscard]] static const View& result(const AttendGradArgs& a) { return a.dq; }
  static void set_result(AttendArgs& a, const View& view) { a.o = view; }
  static void set_result(AttendGradArgs& a, const View& view) { a.dq = view; }

  [[nodiscard]] static View sum_of(const Args& a) {
    return {nullptr, accumulator_of(a.q.type), a.q.batch, a.q.rows, a.scope.query_heads, result(a).width};
  }
  [[nodiscard]] Args summed(Args a) const {
    if (sum_ == nullptr) return a;
    View sum = sum_of(a);
    sum.data = sum_->data();
    set_result(a, sum);
    return a;
  }

  void enqueue(const BlockList<Args>& list) override {
    for (i64 i = 0; i < list.count; ++i) {
      const Args& block = list.blocks[i];
      if (!memory_.await(list.gate(i), static_cast<int>(i), list.watch, block.scope.progress)) return;
      steps_[static_cast<std::size_t>(i)]->run(summed(block));
      memory_.complete(list.completion(i), list.watch);
    }
    if (sum_ == nullptr) return;
    const Args& first = list.front();
    const ViewRegion all{{0, first.q.rows}, first.scope.query_heads};
    memory_.copy_region(result(summed(first)), all, result(first), all, WriteMode::overwrite);
  }

  Memory& memory_;
  std::unique_ptr<Arena> sum_;  ///< null: results are summed where they lie
  std::vector<std::unique_ptr<PreparedStep<Args>>> steps_;
};

}  // namespace usp::kernels
