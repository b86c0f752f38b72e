// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/memory.hpp"
#include "usp/kernels/score_terms.hpp"
#include "usp/kernels/view.hpp"
#include "usp/schedule/kernel_traits.hpp"
#include "usp/schedule/slice.hpp"

#include <optional>
#include <vector>

/// One block of attention on one rank: the contract of every backend. Kernels compute; they never
/// communicate. Local. On the host a call is done when it returns; on a GPU it is enqueued on the stream of
/// the kernel's memory.
namespace usp::kernels {

/// Called between tiles so that transfers advance while a kernel runs (MPI makes no progress of its own).
struct Progress {
  void (*call)(void*) = nullptr;
  void* context = nullptr;
  void operator()() const {
    if (call != nullptr) call(context);
  }
};

/// Which heads and pairs a call covers. Query head h reads KV head h / group; both are global numbers, so a
/// rank may hold any range of heads, torn groups included. A kernel reads and writes no other rows and heads:
/// a transfer may be filling them.
struct AttendScope {
  Range query_heads;
  int group = 1;                            ///< query heads per KV head
  const schedule::Slice* slices = nullptr;  ///< rows are rows of the views
  i64 slice_count = 0;
  const ScoreTerms* terms = nullptr;
  Progress progress;
  /// Backend of the call by its plan, for one that leaves calls to another; empty: the backend decides.
  std::optional<Backend> use;

  /// KV heads that the query heads read; expects some query head.
  [[nodiscard]] Range kv_heads() const {
    return {query_heads.begin / group, (query_heads.end - 1) / group + 1};
  }
};

/// Merges the pairs of the slices into the carried state: o is normalised by exp(lse), lse is the natural
/// log-sum-exp so far; both in the accumulator type. The empty state is o = 0, lse = -inf (or the sink's
/// logit), and a row that sees nothing leaves it untouched, bit for bit. No pair may be covered twice.
///
/// `overwrite`: the state is empty whatever its memory holds. It is not read, and all rows of the scope's
/// heads are written (with the empty state where a row sees nothing); backends that say so may then write o
/// in the input type, rounded once.
struct AttendArgs {
  ConstView q, k, v;  ///< widths: Dqk, Dqk, Dv
  View o;             ///< width Dv
  View lse;           ///< width 1
  AttendScope scope;
  bool overwrite = false;
  const double* sink =
      nullptr;  ///< with overwrite: the empty state's logit per global query head; null: none
};

/// delta = rowsum(dO * O) of every row, for the heads of `query_heads`; with a sink also its gradient:
/// d_sink[h] -= sum over rows of exp(sink[h] - lse) * delta.
struct DeltaArgs {
  ConstView d_o, o, lse;
  View delta;
  Range query_heads;
  const double* sink = nullptr;  ///< per global query head; null: none
  double* d_sink = nullptr;      ///< added to, per global query head
};

/// Adds the gradients of the slices' pairs into dq, dk, dv (accumulator type), from the final lse and delta
/// of the whole softmax: P = exp(S - lse), dS = P * (dP - delta). Key rows of dk and dv count from
/// Slice::dk_row. Rows with lse = -inf keep their values.
///
/// `overwrite`: dq, dk and dv hold nothing yet. They are not read, and all rows of the scope's heads are
/// written (zero where there is no pair); backends that say so may then write them in the input type, rounded
/// once.
struct AttendGradArgs {
  ConstView q, k, v, d_o, lse, delta;
  View dq, dk, dv;
  AttendScope scope;
  bool overwrite = false;
  /// The final o, of the input or the accumulator type, for a backend that asks (wants_o); data null: not
  /// given. Such a backend, given o, needs no delta.
  ConstView o;
};

/// Calls (of blocks, where a block is the matter) that went to another backend than their plan says.
struct BackendFallback {
  Pass pass = Pass::forward;  ///< of attend or attend_grad
  schedule::UnsupportedReason why = schedule::UnsupportedReason::none;
  i64 count = 0;
};

/// A backend. Any of bf16, fp16, fp32 with an fp32 state, or fp64 with an fp64 state; q, k and v of one type,
/// d_o of that or the accumulator type. Results do not depend on how the work is spread over threads.
/// Throws InternalError when views do not fit together.
class AttentionKernel {
 public:
  virtual ~AttentionKernel() = default;
  [[nodiscard]] virtual const char* name() const = 0;
  /// Where the views of all calls, and everything that is per head, lie.
  [[nodiscard]] virtual Memory& memory() { return host_memory(); }
  /// Slices given so far are about to change or go: a backend that keeps tables by a slice list's address
  /// drops them.
  virtual void forget() {}
  /// Since the kernel was made. A call without AttendScope::use departs from nothing.
  [[nodiscard]] virtual std::vector<BackendFallback> fallbacks() const { return {}; }
  /// With `overwrite`, results may have the input type.
  [[nodiscard]] virtual bool rounds_results() const { return false; }
  /// attend_grad is better given o, and then needs no delta; without o it takes a slower way.
  [[nodiscard]] virtual bool wants_o() const { return false; }
  virtual void attend(const AttendArgs& args) = 0;
  virtual void delta(const DeltaArgs& args) = 0;
  virtual void attend_grad(const AttendGradArgs& args) = 0;
};

/// Checks that views and scope of a call fit together and into the rows the slices name; every backend calls
/// these first, with its rounds_results(). Throws InternalError.
void check(const AttendArgs& args, bool rounds_results = false);
void check(const DeltaArgs& args);
void check(const AttendGradArgs& args, bool rounds_results = false);

}  // namespace usp::kernels
