// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "usp/kernels/attention_args.hpp"
#include "usp/kernels/memory.hpp"
#include "usp/kernels/step_form.hpp"

#include <memory>
#include <string>
#include <vector>

/// One block of attention on one rank: the contract of every backend. Kernels compute; they never
/// communicate. Local. On the host a call is done when it returns; on a GPU it is enqueued on the stream of
/// the kernel's memory.
namespace usp::kernels {

/// Calls (of blocks, where a block is the matter) that went to another backend than their plan says.
struct BackendFallback {
  Pass pass = Pass::forward;  ///< of attend or attend_grad
  schedule::UnsupportedReason why = schedule::UnsupportedReason::none;
  i64 count = 0;
};

/// One step with all that was decided about it: splits into blocks, graphs, tables, the steps of a fallback.
/// Made by AttentionKernel::prepare, whose kernel outlives it; of the arguments it was prepared with nothing
/// has to. It may end while a GPU still works on its last run.
template <class Args>
class PreparedStep {
 public:
  explicit PreparedStep(const Args& args) : form_(args) {}
  PreparedStep(const PreparedStep&) = delete;
  PreparedStep& operator=(const PreparedStep&) = delete;
  virtual ~PreparedStep() = default;

  /// Whether views, scope and flags are those of prepare, whatever the addresses.
  [[nodiscard]] bool fits(const Args& args) const { return form_.fits(args); }
  /// Computes, in memory at any addresses; scope.slices is not read. Allocates nothing and decides nothing,
  /// so that a CUDA graph may capture it. Throws InternalError for arguments that do not fit: prepare anew.
  void run(const Args& args) {
    expect_fit(fits(args));
    enqueue(args);
  }

 private:
  virtual void enqueue(const Args& args) = 0;

  StepForm<Args> form_;
};

using PreparedAttend = PreparedStep<AttendArgs>;
using PreparedAttendGrad = PreparedStep<AttendGradArgs>;
using PreparedAttendBlocks = PreparedStep<AttendBlocks>;
using PreparedAttendGradBlocks = PreparedStep<AttendGradBlocks>;

/// A backend. Any of bf16, fp16, fp32 with an fp32 state, or fp64 with an fp64 state; q, k and v of one type,
/// d_o of that or the accumulator type. Results do not depend on how the work is spread over threads.
/// Throws InternalError when views do not fit together. Steps of one kernel share its scratch memory: one
/// call at a time.
class AttentionKernel {
 public:
  virtual ~AttentionKernel() = default;
  [[nodiscard]] virtual const char* name() const = 0;
  /// Of the library that computes, "9.19.1"; empty: it is this project's own.
  [[nodiscard]] virtual std::string library_version() const { return ""; }
  /// Where the views of all calls, and everything that is per head, lie.
  [[nodiscard]] virtual Memory& memory() { return host_memory(); }
  /// Of runs since the kernel was made. A step without AttendScope::use departs from nothing.
  [[nodiscard]] virtual std::vector<BackendFallback> fallbacks() const { return {}; }
  /// With `overwrite`, results may have the input type.
  [[nodiscard]] virtual bool rounds_results() const { return false; }
  /// The gradient is better given o, and then needs no delta; without o it takes a slower way.
  [[nodiscard]] virtual bool wants_o() const { return false; }
  /// Decides how a step is computed and makes room for it: allocates, may upload in stream order, may take
  /// tens of milliseconds. The views' memory is neither read nor written. A table's memory that a step leaves
  /// serves later ones, so that steps that come and go allocate none in the end.
  [[nodiscard]] virtual std::unique_ptr<PreparedAttend> prepare(const AttendArgs& args) = 0;
  [[nodiscard]] virtual std::unique_ptr<PreparedAttendGrad> prepare(const AttendGradArgs& args) = 0;
  /// Whether lists of blocks of a pass begin with those that have arrived, and wait for the others inside the
  /// launch. Else each block waits for its gate before its own launch.
  [[nodiscard]] virtual bool waits_inside(Pass /*pass*/) const { return false; }
  /// A list of blocks of keys, in the order of the list. A backend that has no way of its own computes one
  /// block after the other, each behind its gate.
  [[nodiscard]] virtual std::unique_ptr<PreparedAttendBlocks> prepare_blocks(const AttendBlocks& list);
  [[nodiscard]] virtual std::unique_ptr<PreparedAttendGradBlocks> prepare_blocks(
      const AttendGradBlocks& list);
  virtual void delta(const DeltaArgs& args) = 0;
};

/// For a step that is computed once.
template <class Args>
void run_once(AttentionKernel& kernel, const Args& args) {
  kernel.prepare(args)->run(args);
}
template <class Args>
void run_once(AttentionKernel& kernel, const BlockList<Args>& list) {
  kernel.prepare_blocks(list)->run(list);
}

}  // namespace usp::kernels
