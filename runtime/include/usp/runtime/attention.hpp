// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/runtime/batch.hpp"
#include "usp/runtime/executor.hpp"

#include <memory>
#include <vector>

namespace usp {

/// One attention layer with an executor, a batch and a saved state of its own: the simplest way to run a
/// plan. Layers that share workspace and schedules, and several forwards in flight, take Executor, Batch and
/// SavedState. Construction, set_batch, forward and backward are collective: every rank calls them in the
/// same order. Tensors, streams and CUDA graphs: as Executor says.
class AttentionOperator {
 public:
  /// Rank p of the communicator or data_plane is the mesh's rank p. They and the kernel outlive this. Throws
  /// InvalidInput for a plan out of range (check_attention_plan), UsageError when they do not fit the plan,
  /// DisagreementError when ranks hold different plans.
  AttentionOperator(const AttentionPlan& plan, comm::Communicator& communicator,
                    kernels::AttentionKernel& kernel, const ExecutorOptions& options = {});
  AttentionOperator(const AttentionPlan& plan, comm::DataPlane& data_plane, kernels::AttentionKernel& kernel,
                    const ExecutorOptions& options = {});
  ~AttentionOperator();
  AttentionOperator(const AttentionOperator&) = delete;
  AttentionOperator& operator=(const AttentionOperator&) = delete;

  /// The documents of the steps that follow: expands the schedules and makes room. Tokens may not exceed the
  /// plan's (its capacity); throws InvalidInput when they do, DisagreementError when ranks differ.
  void set_batch(const Documents& documents);

  /// Global tokens of the home rows, in order; none without a batch.
  [[nodiscard]] const std::vector<i64>& q_tokens() const;
  [[nodiscard]] const std::vector<i64>& kv_tokens() const;

  /// out: [batch][home q row][query head][Dv] in the input type. lse: the same with width 1 in the
  /// accumulator type; required iff the plan returns it (return_lse). Throws DisagreementError when ranks
  /// differ in what must be the same on all: on the host in every call, replicated tokens included; on a GPU
  /// what is per head in the first call of a batch, and the seed.
  void forward(const AttentionInputs& inputs, kernels::View out, kernels::View lse = {});
  /// Of the last forward, with the same inputs where they were: an operator holds the state of one call. That
  /// call's `out` is read again and must be as forward left it. d_out as out. May be called again before the
  /// next forward. Throws UsageError where q, k or v lie elsewhere than in the last forward, where what is
  /// per head or the seed is another, and where there was no forward since set_batch.
  void backward(const AttentionInputs& inputs, kernels::ConstView d_out, const AttentionGradients& gradients);

  /// Of the last call of each pass.
  [[nodiscard]] const PassRecord& record(Pass pass) const;
  [[nodiscard]] const schedule::RankSchedule& schedule(Pass pass) const;
  /// The final log-sum-exp of the rank's query rows and heads in row layout, kept for backward, and the
  /// global tokens of those rows.
  [[nodiscard]] kernels::ConstView row_lse() const;
  [[nodiscard]] std::vector<i64> row_tokens() const;
  /// Bytes that this operator holds beside the caller's tensors: workspace, and what forward saves.
  [[nodiscard]] i64 workspace_bytes() const;
  [[nodiscard]] i64 saved_bytes() const;
  /// What the plan foresees of the kernel's memory on this rank beside the caller's tensors, for both passes
  /// or forward alone: the two above, sums of gradients that are rounded in the end, and the kernel's own
  /// scratch.
  [[nodiscard]] i64 planned_memory_bytes(bool training = true) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace usp
