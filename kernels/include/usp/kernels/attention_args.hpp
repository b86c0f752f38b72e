// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/gate.hpp"
#include "usp/kernels/progress.hpp"
#include "usp/kernels/score_terms.hpp"
#include "usp/kernels/view.hpp"
#include "usp/schedule/kernel_traits.hpp"
#include "usp/schedule/slice.hpp"

#include <optional>

/// Operands of the calls of usp/kernels/attention_kernel.hpp.
namespace usp::kernels {

/// Which heads and pairs a call covers. Query head h reads KV head h / group; both are global numbers, so a
/// rank may hold any range of heads, torn groups included. A kernel reads and writes no other rows and heads:
/// a transfer may be filling them.
struct AttendScope {
  Range query_heads;
  int group = 1;                            ///< query heads per KV head
  const schedule::Slice* slices = nullptr;  ///< rows are rows of the views; read by prepare alone
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
/// once. `overwrite_dkv`: dk and dv hold nothing yet, whatever dq holds.
struct AttendGradArgs {
  ConstView q, k, v, d_o, lse, delta;
  View dq, dk, dv;
  AttendScope scope;
  bool overwrite = false;
  /// The final o, of the input or the accumulator type, for a backend that asks (wants_o); data null: not
  /// given. Such a backend, given o, needs no delta.
  ConstView o;
  bool overwrite_dkv = false;

  [[nodiscard]] bool overwrites_dkv() const { return overwrite || overwrite_dkv; }
};

/// Calls for one block of keys each, one after the other. They share the queries and all that is per query:
/// AttendArgs q, o, lse, sink; AttendGradArgs q, d_o, lse, delta, dq, o; of the scope all but the slices.
/// `overwrite` of AttendArgs is that of the first call, and no later one has it; in AttendGradArgs a later
/// one says overwrite_dkv alone. Non-owning; at least one block.
///
/// Blocks with gates may arrive during the call: k and v of a block hold anything until its gate opens, and
/// are not read before. Everything else is there. Blocks are computed in the order of the list, whatever the
/// order of arrival, so that a forward result does not depend on it. A list is best in the order in which its
/// blocks are expected, the ones that have arrived first.
///
/// On a GPU the call is enqueued at once, and waits there. It hangs, or ends by its watch, unless
///  - what opens its gates is enqueued before the call (one hardware queue may serve all streams) and takes
///    no multiprocessor: copies from peers or the host, by copy engines (an H200 copies within its own memory
///    by kernels, whatever the call);
///  - nothing that opens them waits for what comes after the call;
///  - no other rank of the job waits on the same device;
///  - until the last arrival the host neither allocates nor frees device memory, uses the legacy stream or
///    launches a kernel for the first time: each may wait for the device.
/// A graph that captures the call finds the flags reached from its second replay on: do not capture it.
template <class Args>
struct BlockList {
  const Args* blocks = nullptr;
  i64 count = 0;
  const Gate* gates = nullptr;  ///< of each block; null: all have arrived
  GateWatch watch;              ///< of the waits at the gates
  /// Backward: one per block; null: the call sets no flags. With gates, the watch then has a `fault`.
  const Completion* completions = nullptr;

  /// Of block `i`.
  [[nodiscard]] Gate gate(i64 i) const { return gates == nullptr ? Gate{} : gates[i]; }
  [[nodiscard]] Completion completion(i64 i) const {
    return completions == nullptr ? Completion{} : completions[i];
  }

  [[nodiscard]] const Args& front() const { return blocks[0]; }
  [[nodiscard]] const Args* begin() const { return blocks; }
  [[nodiscard]] const Args* end() const { return blocks + count; }
};
using AttendBlocks = BlockList<AttendArgs>;
using AttendGradBlocks = BlockList<AttendGradArgs>;

/// Checks that views and scope of a call fit together and into the rows the slices name; every backend's
/// prepare and delta call these first, with its rounds_results(). Throws InternalError.
void check(const AttendArgs& args, bool rounds_results = false);
void check(const DeltaArgs& args);
void check(const AttendGradArgs& args, bool rounds_results = false);
/// The same of every block, and that they share what they have to.
void check(const AttendBlocks& list, bool rounds_results = false);
void check(const AttendGradBlocks& list, bool rounds_results = false);

}  // namespace usp::kernels
