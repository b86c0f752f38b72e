// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/comm/communicator.hpp"
#include "usp/kernels/attention_kernel.hpp"
#include "usp/runtime/execution.hpp"
#include "usp/schedule/plan.hpp"

#include <memory>
#include <vector>

/// Attention on a ring x ulysses mesh: runs the schedule of a plan, forward and backward.
namespace usp {

struct OperatorOptions {
  bool debug_nan = false;          ///< what is not there yet reads as NaN
  bool stream_times = false;       ///< on a GPU: TickTimes of its stream; a call then waits for its own end
  bool measure_workspace = false;  ///< fill the workspace with a pattern and find what was touched
};

/// What a call reads on one rank. q, k, v are [batch][row][head][width] in any strides, all heads of the
/// rank's home tokens: first those that every rank holds (AttentionPlan::replicated_*), then its own, each in
/// ascending order (AttentionOperator::q_tokens). What is per head is indexed by global head.
struct AttentionInputs {
  ConstView q, k, v;
  const double* sink = nullptr;          ///< logits, one per query head; required iff the plan has a sink
  const double* alibi_slopes = nullptr;  ///< one per query head; required iff the plan has ALiBi
  const BlockMask* blocks = nullptr;  ///< required iff the plan has a block pattern; the same on every rank
  std::uint64_t dropout_seed = 0;     ///< the same on every rank and in both passes of a step
};

/// Gradients of one rank's home tokens, all written. Types: the input type, or the accumulator type. A
/// replicated token's gradients are partial sums: its gradient is the sum over ranks.
struct AttentionGradients {
  View dq, dk, dv;
  double* d_sink =
      nullptr;  ///< per query head, added to: partial sums over ranks, as parameter gradients are
};

/// One attention layer on one rank. Construction, set_batch, forward and backward are collective: every rank
/// calls them in the same order. All tensors, and what is per head, lie in the kernel's memory. Strides are 0
/// or more. Inputs may overlap one another; the elements of a result have a place each, apart from all else
/// that the call reads or writes (tensors may interleave). UsageError names the tensors otherwise. On the
/// host calls return when this rank is done; on a GPU its work is enqueued on the memory's stream by then,
/// and the calls wait for other ranks' threads only.
///
/// Forward and backward may be captured into a CUDA graph (with the runtime's thread-local capture mode) when
/// the communicator is capturable() and each has run once since set_batch; a replay reads and writes the
/// tensors of the captured call. UsageError names any other obstacle.
class AttentionOperator {
 public:
  /// The communicator's rank p is the mesh's rank p. Communicator and kernel outlive this. Throws
  /// InvalidInput for a plan out of range (check_attention_plan), UsageError when they do not fit the plan,
  /// DisagreementError when ranks hold different plans.
  AttentionOperator(const AttentionPlan& plan, Communicator& communicator, AttentionKernel& kernel,
                    const OperatorOptions& options = {});
  ~AttentionOperator();
  AttentionOperator(const AttentionOperator&) = delete;
  AttentionOperator& operator=(const AttentionOperator&) = delete;

  /// The documents of the steps that follow: expands the schedules and makes room. Tokens may not exceed the
  /// plan's (its capacity); throws InvalidInput when they do, DisagreementError when ranks differ.
  void set_batch(const Documents& documents);

  /// Global tokens of the home rows, in order.
  [[nodiscard]] const std::vector<i64>& q_tokens() const;
  [[nodiscard]] const std::vector<i64>& kv_tokens() const;

  /// out: [batch][home q row][query head][Dv] in the input type. lse: the same with width 1 in the
  /// accumulator type; required iff the plan returns it (return_lse). Throws DisagreementError when ranks
  /// differ in what must be the same on all: on the host in every call, replicated tokens included; on a GPU
  /// what is per head in the first call of a batch, and the seed.
  void forward(const AttentionInputs& inputs, View out, View lse = {});
  /// Of the last forward, with the same inputs where they were: an operator holds the state of one call. That
  /// call's `out` is read again and must be as forward left it. d_out as out. May be called again before the
  /// next forward. Throws UsageError where q, k or v lie elsewhere than in the last forward, where what is
  /// per head or the seed is another, and where there was no forward since set_batch.
  void backward(const AttentionInputs& inputs, ConstView d_out, const AttentionGradients& gradients);

  /// Of the last call of each pass.
  [[nodiscard]] const PassRecord& record(Pass pass) const;
  [[nodiscard]] const RankSchedule& schedule(Pass pass) const;
  /// The final log-sum-exp of the rank's query rows and heads in row layout, kept for backward, and the
  /// global tokens of those rows.
  [[nodiscard]] ConstView row_lse() const;
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

/// Digest of everything in a plan: equal on ranks that will run the same schedule.
[[nodiscard]] std::uint64_t digest(const AttentionPlan& plan);
[[nodiscard]] std::uint64_t digest(const Documents& documents);

}  // namespace usp
